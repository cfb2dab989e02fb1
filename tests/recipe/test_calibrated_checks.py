"""Checks on the samples of a calibration are doubted, in the plan, at the end of a run and on its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow import api
from ndld_flow.recipe.calibrated_checks import doubt_checks
from ndld_flow.runner.events import RunFinished
from tests.support.models_run import write_model
from tests.support.recipes import load_recipe

CHECK = {"step": "check_accuracy", "reference": "source", "tolerance": {"slices": "loose"}}
SMALL = {"step": "quantize", "min_intensity": 0}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of two inputs, and eight files for each."""
    monkeypatch.chdir(tmp_path)
    numbers = ",".join(map(str, np.linspace(-1, 1, 64).round(3)))
    body = "h = MatMul(x, w) y = Add(h, m)"
    write_model(
        tmp_path / "m.onnx",
        f"g (float[4,8] x, float[4,8] m) => (float[4,8] y) <float[8,8] w = {{{numbers}}}> {{ {body} }}",
    )
    for number in range(8):
        values = np.random.default_rng(number).uniform(-1, 1, (4, 8)).astype(np.float32)
        np.save(tmp_path / f"a{number}.npy", values)
    np.save(tmp_path / "mask.npy", np.zeros((4, 8), np.float32))
    return tmp_path


def write(steps: dict[str, Any], inputs: dict[str, Any]) -> Path:
    recipe = {"name": "r", "model": "m.onnx", "inputs": inputs, "steps": steps}
    Path("r.yaml").write_text(json.dumps(recipe))
    return Path("r.yaml")


def doubted(steps: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, str]:
    return doubt_checks(load_recipe(write(steps, {"x": {"data": "a*.npy"}} if inputs is None else inputs)))


def both(small: dict[str, Any], agree: dict[str, Any]) -> dict[str, Any]:
    return {"small": {**SMALL, **small}, "agree": {**CHECK, "candidate": "small", **agree}}


MASKED = {"x": {"data": "a*.npy"}, "m": {"data": "mask.npy"}}
RANDOM = {"x": {"data": "random"}}


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("steps", "inputs", "words"),
    [
        (both({}, {}), None, "8 files"),
        (both({}, {}), MASKED, "8 files"),
        (both({"data": {"x": "a[0-3].npy"}}, {}), None, "4 of 8 files"),
        (both({"data": {"x": "a[0-3].npy"}}, {"data": {"x": ["./a3.npy", "a4.npy"]}}), None, "1 of 2 files"),
        (both({"samples": 2}, {}), None, "2 of 8 files"),
        (both({"samples": 4}, {}), RANDOM, "generated values"),
        (both({"samples": 4}, {"seed": 3}), {}, "generated values"),
    ],
)
def test_a_check_on_the_samples_of_a_calibration_is_doubted(
    steps: dict[str, Any], inputs: dict[str, Any] | None, words: str
) -> None:
    (text,) = doubted(steps, inputs).values()
    assert text.startswith(f"agree judges small on {words} that it is calibrated on")


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("steps", "inputs"),
    [
        (both({"data": {"x": "a[0-3].npy"}}, {"data": {"x": "a[4-7].npy"}}), None),
        (both({"data": {"x": "a[0-3].npy"}}, {"data": {"x": "a[4-7].npy"}}), MASKED),
        (both({"samples": 4}, {"seed": 4}), RANDOM),
        (both({"mode": "dynamic"}, {}), None),
        (both({}, {"reference": "small", "runtime": {"backend": "openvino"}}), None),  # two runtimes of one model
        (both({}, {"candidate": "source"}), None),
        (
            both({}, {}) | {"held": {**CHECK, "candidate": "small", "data": {"x": "a0.npy"}}},
            {"x": {"data": "a[1-7].npy"}},
        ),
    ],
)
def test_a_check_on_other_samples_is_not_doubted(steps: dict[str, Any], inputs: dict[str, Any] | None) -> None:
    assert doubted(steps, inputs) == {}


@pytest.mark.usefixtures("in_folder")
def test_steps_between_do_not_hide_a_calibration() -> None:
    steps = both({}, {}) | {"clean": {"step": "sanitize", "from": "small"}}
    steps["agree"]["candidate"] = "clean"
    steps = {name: steps[name] for name in ("small", "clean", "agree")}
    assert list(doubted(steps)) == ["agree"]


@pytest.mark.usefixtures("in_folder")
def test_the_plan_the_end_and_the_page_show_the_doubt() -> None:
    recipe = write(both({}, {}), MASKED)
    words = "agree judges small on 8 files"
    decisions = api.plan(recipe)
    assert isinstance(decisions, list)
    assert any(words in note for note in decisions[1].foresee().notes)
    assert not any(words in note for note in decisions[0].foresee().notes)
    finished = api.run(recipe)
    assert isinstance(finished, RunFinished)
    assert any(words in line and line.startswith("warning") for line in finished.verdict)
    assert words in Path(finished.report).read_text()
