"""Two models compared by `compare`: on the same inputs, with accuracy and speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.events import Event, Notice
from ndld_flow.models.tensors import shape_text
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.run_folder import read_run
from ndld_flow.report import measured
from ndld_flow.report.collect_summary import collect_summary
from ndld_flow.report.verdict import latency_words
from tests.support.command_line import ndld_flow
from tests.support.models import GraphBuilder
from tests.support.models_run import write_model

pytestmark = pytest.mark.usefixtures("fewest_rounds")

FEW_ROUNDS = api.Rules(metric="latency.median", threshold=10.0)
"""A threshold that noise cannot reach: the speed is not what these tests are about."""


def write_net(path: Path, weight: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Path:
    graph = GraphBuilder()
    hidden = graph.op("Tanh", graph.op("MatMul", "x", graph.initializer(weight)))
    out = graph.op("MatMul", hidden, graph.initializer(weight))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in ("x", out))
    onnx.save(graph.model([x], [y]), path)
    return path


@pytest.fixture
def models(in_folder: Path) -> tuple[Path, Path]:
    """Write a model, and one that differs from it by 2 % in a column of its weights."""
    rng = np.random.default_rng(0)
    np.save("rows.npy", rng.normal(size=(6, 64)).astype(np.float32))
    weight = (rng.normal(size=(64, 64)) / 8).astype(np.float32)
    base = write_net(Path("net.onnx"), weight)
    weight[:, 0] *= 1.02
    return base, write_net(Path("other.onnx"), weight)


def test_two_models_are_judged_and_measured_on_the_given_samples(models: tuple[Path, Path]) -> None:
    compared = api.compare_models(models, rules=FEW_ROUNDS, options=api.ModelOptions(data=("rows.npy",)))
    run = read_run(Path(compared.finished.folder))
    accuracy = run.of(Accuracy)["agree"]
    assert accuracy.sample_count == 6
    assert 0 < accuracy.outputs[0].metrics["slice_rms"] < 0.05
    assert any(
        verdict.metric == "latency.median" and verdict.clock for verdict in compared.comparison.profiles[0].verdicts
    )
    page = (Path(compared.finished.folder) / "decide/comparison.html").read_text()
    assert "step base of net.onnx" in page and "step speed of other.onnx" in page
    graph = collect_summary(run).graph
    assert (graph.final, graph.bytes_after) == ("candidate", models[1].stat().st_size)


def test_sizes_that_nobody_gave_are_named_beside_the_speed(in_folder: Path) -> None:
    """The gain of a loop at one step is not that at a hundred."""
    text = "g (float[batch, steps] x) => (float[batch, steps] y) { y = Tanh(x) }"
    models = [write_model(Path(name), text) for name in ("free.onnx", "other.onnx")]
    events: list[Event] = []
    compared = api.compare_models(models, rules=FEW_ROUNDS, listener=events.append)
    summary = collect_summary(read_run(Path(compared.finished.folder)))
    (shape,) = [item.shape for item in compared.profiles[1].inputs]
    assert min(shape) == 1 < max(shape)
    assert any(f"x {shape_text(shape)}" in event.text for event in events if isinstance(event, Notice))
    assert summary.latency is not None
    assert f"x {measured.shape_text(shape)} " in latency_words(summary)


def test_sizes_that_the_candidate_has_fixed_are_those_of_both(in_folder: Path) -> None:
    for name, shape in (("free", "batch, steps"), ("fixed", "1, 5"), ("other", "1, 6"), ("row", "5")):
        write_model(Path(f"{name}.onnx"), f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Tanh(x) }}")
    compared = api.compare_models([Path("free.onnx"), Path("fixed.onnx")], rules=FEW_ROUNDS)
    assert [item.shape for profile in compared.profiles for item in profile.inputs] == [(1, 5), (1, 5)]
    for base, candidate in (("fixed", "other"), ("free", "row")):
        with pytest.raises(RequestError, match=rf"\bx\b.*{base}.*{candidate}.*--allow batch"):
            api.compare_models([Path(f"{base}.onnx"), Path(f"{candidate}.onnx")])


def test_a_wrong_candidate_fails_with_exit_1(models: tuple[Path, Path]) -> None:
    base, other = models
    write_net(other, np.eye(64, dtype=np.float32))
    ran = ndld_flow("compare", str(base), str(other), "--threshold", "1000 %", cwd=Path())
    assert ran.returncode == 1
    (recipe,) = Path("outputs/comparisons").glob("*/recipe.yaml")
    assert f"ndld-flow run {recipe}" in recipe.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("net.onnx", "missing.onnx"),
        ("net.onnx", "other.onnx", "net.onnx"),
        ("net.onnx", "latest"),
        ("net.onnx", "other.onnx", "--to", "there"),
        ("net.onnx", "other.onnx", "--data", "missing/"),
        ("net.onnx", "other.onnx", "--shape", "z=1x3"),
        ("latest", "latest", "--data", "rows.npy"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    models: tuple[Path, Path], arguments: tuple[str, ...]
) -> None:
    assert ndld_flow("compare", *arguments, cwd=Path()).returncode == 2
    assert not Path("outputs/runs").exists()


def test_models_of_other_inputs_are_refused_before_anything_is_written(models: tuple[Path, Path]) -> None:
    other = onnx.load(models[1])
    other.graph.input[0].name = other.graph.node[0].input[0] = "rows"
    onnx.save(other, models[1])
    with pytest.raises(RequestError, match=r"net.onnx alone has x; other.onnx"):
        api.compare_models(models)
    assert not Path("outputs").exists()


def test_an_input_that_one_model_alone_has_is_not_to_be_renamed(models: tuple[Path, Path]) -> None:
    other = onnx.load(models[1])
    other.graph.input.append(onnx.helper.make_tensor_value_info("rate", onnx.TensorProto.INT64, ()))
    onnx.save(other, models[1])
    with pytest.raises(RequestError, match="remove_inputs"):
        api.compare_models(models)


def test_one_model_cannot_be_compared(models: tuple[Path, Path]) -> None:
    with pytest.raises(RequestError):
        api.compare_models(models[:1])
