"""Two models compared by `compare`: on the same inputs, with accuracy and speed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.events import Event, Notice
from ndld_flow.models.tensors import shape_text
from ndld_flow.optimize.compose import read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.run_folder import read_run
from ndld_flow.records.run_record import ExportRecord
from ndld_flow.report import measured
from ndld_flow.report.collect_summary import collect_summary
from ndld_flow.report.panels.accuracy import collect_accuracy
from ndld_flow.report.verdict import latency_words
from ndld_flow.runner.held_out_check import find_check
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import sha256_of
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
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


def test_samples_of_several_sizes_are_measured_in_turn(models: tuple[Path, Path]) -> None:
    Path("sizes").mkdir()
    for rows in (1, 3, 2):
        np.save(f"sizes/{rows}.npy", np.ones((rows, 64), np.float32))
    compared = api.compare_models(models, rules=FEW_ROUNDS, options=api.ModelOptions(data=("sizes",)))
    assert [profile.options["samples"] for profile in compared.profiles] == [3, 3]


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
    assert compared.finished in events, "a program that listens sees the end"
    assert summary.latency is not None
    assert f"x {measured.shape_text(shape)} " in latency_words(summary)


def test_sizes_that_the_candidate_has_fixed_are_those_of_both(in_folder: Path, check_message: CheckMessage) -> None:
    for name, shape in (("free", "batch, steps"), ("fixed", "1, 5"), ("other", "1, 6"), ("row", "5")):
        write_model(Path(f"{name}.onnx"), f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Tanh(x) }}")
    compared = api.compare_models([Path("free.onnx"), Path("fixed.onnx")], rules=FEW_ROUNDS)
    assert [item.shape for profile in compared.profiles for item in profile.inputs] == [(1, 5), (1, 5)]
    for base, candidate in (("fixed", "other"), ("free", "row")):
        with pytest.raises(RequestError) as caught:
            api.compare_models([Path(f"{base}.onnx"), Path(f"{candidate}.onnx")])
        check_message(caught.value)


def test_a_wrong_candidate_fails_with_exit_1(models: tuple[Path, Path]) -> None:
    base, other = models
    write_net(other, np.eye(64, dtype=np.float32))
    ran = ndld_flow("compare", str(base), str(other), "--threshold", "1000 %", cwd=Path())
    assert ran.returncode == 1
    (recipe,) = Path("outputs/comparisons").glob("*/recipe.yaml")
    assert f"ndld-flow run {recipe}" in recipe.read_text()


def prove(base: Path, candidate: Path, *keep: str, data: tuple[str, ...] = ("rows.npy",)) -> Path:
    """Move a candidate to another folder with the record that `optimize` writes next to it."""
    composer = read_model(base, OptimizeOptions(data=data, keep=keep), Path("proof"))
    Path("deploy").mkdir(exist_ok=True)
    moved = candidate.rename(Path("deploy", candidate.name))
    record = ExportRecord(
        sha256={moved.name: sha256_of(moved)},
        step="made",
        artifact="",
        source=str(base),
        source_digest=find_model(ModelSource(source=str(base)), Outputs(Path("outputs")).store, print).record.digest,
        run="optimize-net-proof/1",
        started_at=datetime.now(UTC),
        metrics={},
        gates=(),
        versions={},
        check=composer.describe_check(composer.variants[0]),
    )
    Path("deploy/other.onnx.json").write_text(record.to_json())
    return moved


def compare(*models: Path, **options: Any) -> tuple[api.ComparedModels, Accuracy, str]:
    """Return the comparison, its check of accuracy, and the last notice."""
    texts: list[str] = []
    compared = api.compare_models(
        models,
        rules=FEW_ROUNDS,
        options=api.ModelOptions(**options),
        listener=lambda event: texts.append(event.text) if isinstance(event, Notice) else None,
    )
    return compared, read_run(Path(compared.finished.folder)).of(Accuracy)["agree"], (texts or [""])[-1]


def write_coarse(models: tuple[Path, Path]) -> tuple[Path, Path]:
    """Write a second model that is off by 30 % in a channel, as INT8 is on values that it was not calibrated on."""
    model = onnx.load(models[0])
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[:, 0] *= 1.3
    return models[0], write_net(models[1], weight)


@pytest.mark.parametrize(("keep", "exit_code"), [((), 1), (("cosine >= 0.9",), 0), (("cosine >= 0.99999",), 1)])
def test_a_result_of_optimize_is_compared_on_the_samples_and_by_the_conditions_of_its_proof(
    models: tuple[Path, Path], keep: tuple[str, ...], exit_code: int
) -> None:
    base, coarse = write_coarse(models)
    compared, accuracy, notice = compare(base, prove(base, coarse, *keep))
    assert [sample.sample for sample in accuracy.samples] == ["rows-0002.npy", "rows-0005.npy"], "those held out of six"
    assert (bool(accuracy.tolerance), compared.finished.exit_code) == (not keep, exit_code)
    summary = collect_summary(read_run(Path(compared.finished.folder))).accuracy
    assert summary is not None and summary.unjudged == (("slices", "max abs") if keep else ())
    assert "2 samples" in notice and all(condition in notice for condition in keep)
    other, accuracy, _ = compare(base, Path("deploy/other.onnx"), data=("rows.npy",))
    assert (accuracy.sample_count, other.finished.exit_code) == (6, 1), "--data has the bounds of every comparison"


@pytest.mark.parametrize("data", [(), ("rows.npy",)], ids=["samples of the proof", "other samples"])
def test_a_result_of_optimize_runs_in_its_own_runtime(models: tuple[Path, Path], data: tuple[str, ...]) -> None:
    """A ratio of both in ONNX Runtime would be another number than the one that `optimize` proved."""
    base, other = models
    moved = prove(base, other, "cosine >= 0.9")
    edit_record('"runtime": "onnxruntime"', '"runtime": "{backend: openvino, inference_precision: f32}"')
    edit_record('"source_runtime": "onnxruntime"', '"source_runtime": "{backend: onnxruntime, threads: 1}"')
    compared, accuracy, notice = compare(base, moved, data=data)
    assert [profile.backend for profile in compared.profiles] == ["onnxruntime", "openvino"]
    assert [profile.options["threads"] for profile in compared.profiles] == [1, 0]
    assert "openvino (inference_precision: f32)" in notice and "onnxruntime (threads: 1)" in notice
    assert accuracy.sample_count == (6 if data else 2)
    compared, _, notice = compare(base, moved, data=data, runtime="openvino")
    assert {profile.backend for profile in compared.profiles} == {"openvino"}
    assert "onnxruntime" not in notice


def test_a_proof_without_data_is_repeated_on_its_generated_samples(models: tuple[Path, Path]) -> None:
    base, coarse = write_coarse(models)
    compared, accuracy, _ = compare(base, prove(base, coarse, "cosine >= 0.9", data=()))
    assert [sample.sample for sample in accuracy.samples][:4] == [f"random, seed {1000 + i}" for i in range(4)]
    assert compared.finished.exit_code == 0


def test_generated_values_decide_against_a_broken_model_alone(models: tuple[Path, Path]) -> None:
    """Values that no user sends show what INT8 was not made for, and also a model that computes something else."""
    base, coarse = write_coarse(models)
    compared, accuracy, notice = compare(base, coarse)
    assert (compared.finished.exit_code, accuracy.outcome) == (4, "inconclusive")
    assert accuracy.outputs[0].undecided and not accuracy.outputs[0].failed
    (view,) = collect_accuracy({"agree": accuracy})
    assert {(row.passed, row.undecided) for row in view.limits if row.used > 1} == {(False, True)}
    assert "x 1x64" in notice and "--data" in notice
    write_net(coarse, np.eye(64, dtype=np.float32))
    compared, accuracy, _ = compare(base, coarse)
    assert (compared.finished.exit_code, accuracy.outcome) == (1, "failed")


def edit_record(old: str, new: str) -> None:
    path = Path("deploy/other.onnx.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: Path("proof/rows-0005.npy").unlink(), "rows-0005.npy"),
        (lambda: np.save("proof/rows-0005.npy", np.zeros((1, 64), np.float32)), "rows-0005.npy"),
        (lambda: os.mkfifo(Path("proof/pipe")) or edit_record("rows-0005.npy", "pipe"), "pipe"),  # type: ignore[func-returns-value]
        (lambda: edit_record("proof/rows", "${oc.env:HOME}/rows"), "rows.* and 1 more"),
        (lambda: edit_record("proof/rows", "n" * 300), "nnn.* and 1 more"),
        (lambda: edit_record('"x": {', '"z": {'), "other inputs"),
        (lambda: edit_record('"runtime": "onnxruntime"', '"runtime": "other"'), "unknown runtime"),
        (lambda: edit_record('"source_runtime": "onnxruntime"', '"source_runtime": "other"'), "unknown runtime"),
        (lambda: edit_record('"runtime": "onnxruntime"', '"runtime": "x, a: b"'), "is invalid"),
        (lambda: edit_record('"runtime": "onnxruntime"', '"runtime": "{backend: onnxruntime, a: ${b}}"'), "is invalid"),
        (lambda: edit_record('"runtime": "onnxruntime"', '"runtime": 3'), "is invalid"),
        (lambda: edit_record("cosine >= 0.9", "cosine >= ${oc.env:HOME}"), "is invalid"),
        (lambda: write_net(Path("deploy/other.onnx"), np.eye(64, dtype=np.float32)), "another model than"),
        (lambda: write_net(Path("net.onnx"), np.eye(64, dtype=np.float32)), "was not made from net.onnx"),
        (lambda: Path("deploy/other.onnx.json").unlink(), "^$"),
    ],
)
def test_a_record_that_does_not_fit_is_not_used(
    models: tuple[Path, Path], change: Callable[[], object], reason: str
) -> None:
    base, coarse = write_coarse(models)
    moved, store = prove(base, coarse, "cosine >= 0.9"), Outputs(Path("outputs")).store
    assert find_check(base, moved, store).check is not None
    change()
    found = find_check(base, moved, store)
    assert not found.data and re.search(reason, found.lack)
    assert found.check is None or "samples" in found.lack, "its runtime is known, whatever became of its samples"


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


def test_models_of_other_inputs_are_refused_before_anything_is_written(
    models: tuple[Path, Path], check_message: CheckMessage
) -> None:
    other = onnx.load(models[1])
    other.graph.input[0].name = other.graph.node[0].input[0] = "rows"
    onnx.save(other, models[1])
    with pytest.raises(RequestError) as caught:
        api.compare_models(models)
    check_message(caught.value)
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
