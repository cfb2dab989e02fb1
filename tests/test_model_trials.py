"""The judge and the file of `bench_models`: a benchmark whose goal is no wrong result must find one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.benchmarks.bench_models import read_lines, write_lines
from tests.support.model_trials.entries import closure, recipe_entries
from tests.support.model_trials.judge import ROUNDING, judge_result, loads_with_shapes, read_source
from tests.support.model_trials.subjects import Subject
from tests.support.model_trials.trial import LOADED, Outcome
from tests.support.models_run import write_model

MODEL = "g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (MODEL, None),
        (MODEL.replace("{1, 2}", "{1, 2.00001}"), None),
        (MODEL.replace("{1, 2}", "{1, 2.01}"), "differs"),
        (MODEL.replace("{ y = Mul(x, w) }", "{ z = Div(x, x) y = Log(z) }"), "differs"),
        (MODEL.replace("Mul(x, w)", "Sqrt(x)"), "differs"),
        (MODEL.replace("Mul(x, w)", "Nonsense(x, w)"), "does not load"),
        ("g (float[n, 2] x) => (float[a, b] y) <int64[2] s = {7, 11}> { y = Reshape(x, s) }", "wrong"),
        ("g (float[n, 2] x) => (float[a, b] y) <int64[2] s = {1, -1}> { y = Reshape(x, s) }", "differs"),
    ],
)
def test_wrong_results_are_found(result: str, fault: str | None, tmp_path: Path) -> None:
    path = write_model(tmp_path / "source.onnx", MODEL)
    source = read_source(Subject("model", "generated", path, {"x": np.array([[-1.0, 2.0], [3.0, 4.0]])}))
    assert source.outputs is not None and not source.fails
    assert judge_result(source, write_model(tmp_path / "result.onnx", result), ROUNDING)[0] == fault


def test_an_invalid_result_of_a_valid_model_is_found(tmp_path: Path) -> None:
    path = write_model(tmp_path / "source.onnx", MODEL)
    source = read_source(Subject("model", "generated", path, {"x": [1, 2]}))
    model = onnx.load(path)
    model.graph.ClearField("name")
    onnx.save(model, tmp_path / "result.onnx")
    assert judge_result(source, tmp_path / "result.onnx", ROUNDING)[0] == "invalid"


def test_shapes_that_onnx_runtime_refuses_too_are_recognized(tmp_path: Path) -> None:
    text = "g (float[a, b] x) => (float[a, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    path = write_model(tmp_path / "model.onnx", text)
    assert loads_with_shapes(path, {"x": np.zeros((5, 2), np.float32)})
    assert not loads_with_shapes(path, {"x": np.zeros((5, 4), np.float32)})
    assert sorted(tmp_path.iterdir()) == [path]


def test_trials_are_read_again_and_an_interrupted_model_is_not(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    for fault in ("refused", None):  # the later trial counts
        write_lines(file, [Outcome("a", "wheels", "lint", fault), Outcome("a", "wheels", LOADED, None)])
    write_lines(file, [Outcome("b", "wheels", "profile", None)])
    write_lines(file, [Outcome("c", "wheels", "lint", None), Outcome("c", "wheels", LOADED, None)])
    write_lines(file, [Outcome("d", "wheels", "lint", None)])
    with file.open("a") as written:
        written.write('{"subject": "b", "gro')
    found = read_lines(file)
    assert [subject for _, subject in found] == ["a", "c"]
    for lines in found.values():
        assert {name: line.outcome.fault for name, line in lines.items()} == {"lint": None, LOADED: None}


def test_every_step_is_tried_after_what_it_reads() -> None:
    entries = recipe_entries(with_slow=True)
    names = list(entries)
    for name in names:
        needed = list(closure(entries, name))
        assert needed[-1] == name
        assert [names.index(item) for item in needed] == sorted(names.index(item) for item in needed)
    assert names[-1] == "lint"
    assert "skip" in recipe_entries(with_slow=False, in_full=False)["lint"]
    assert "skip" not in recipe_entries(with_slow=False)["lint"]
