"""Checks judge samples that calibrations and searches did not see, or are doubted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow import api
from ndld_flow.base.quantities import counted
from ndld_flow.execution.events import RunFinished
from ndld_flow.recipe.calibrated_checks import doubt_checks
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.samples.sample_settings import Seen
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


def arranged(steps: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    recipe = load_recipe(write(steps, {"x": {"data": "a*.npy"}} if inputs is None else inputs))
    return {step.name: step.step for step in recipe.steps}


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("steps", "inputs", "words"),
    [
        (both({"data": {"x": "a[0-3].npy"}}, {}), None, "4 of 8 files"),
        (both({"data": {"x": "a[0-3].npy"}}, {"data": {"x": ["./a3.npy", "a4.npy"]}}), None, "1 of 2 files"),
        (both({"samples": 4}, {"seed": 3}), {}, "generated values"),
    ],
)
def test_a_check_on_some_samples_of_a_calibration_is_doubted(
    steps: dict[str, Any], inputs: dict[str, Any] | None, words: str
) -> None:
    (text,) = doubted(steps, inputs).values()
    assert f"agree judges small on {words}" in text


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("steps", "inputs", "seen"),
    [
        (both({}, {}), None, Seen(hold_out=True)),
        (both({}, {}), MASKED, Seen(hold_out=True)),
        (both({"samples": 2}, {}), None, Seen(first=2)),
        (both({"hold_out": False}, {}), None, Seen()),
        (both({"data": {"x": "a[0-3].npy"}}, {"data": {"x": "a[4-7].npy"}}), None, Seen(first=0)),
        (both({"samples": 4}, {}), RANDOM, Seen(first=4)),
        (both({"samples": 4}, {"seed": 4}), RANDOM, Seen(first=0)),
    ],
)
def test_a_check_knows_the_samples_that_a_calibration_sees(
    steps: dict[str, Any], inputs: dict[str, Any] | None, seen: Seen
) -> None:
    found = arranged(steps, inputs)
    assert found["agree"].seen == {"small": seen}
    assert found["small"].hold_out is seen.hold_out
    assert doubted(steps, inputs) == {}


@pytest.mark.usefixtures("in_folder")
def test_searches_hold_samples_out_too_and_other_steps_none() -> None:
    half = {"search": {"step": "find_precision"}, "half": {"step": "convert_fp16", "found_by": "search"}}
    agree = {"agree": {**CHECK, "candidate": "half"}}
    found = arranged(half | agree)
    assert found["agree"].seen == {"search": Seen(hold_out=True)} and found["search"].hold_out
    assert not arranged(half)["search"].hold_out
    assert arranged({"half": {"step": "convert_fp16"}} | agree)["agree"].seen == {}


@pytest.mark.usefixtures("in_folder")
def test_samples_that_a_recipe_names_as_seen_stay() -> None:
    found = arranged(both({}, {"seen": {"training": {"first": 3}}}))
    assert found["agree"].seen == {"training": Seen(first=3)} and not found["small"].hold_out


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("steps", "inputs"),
    [
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
    steps = both({"data": {"x": "a[0-3].npy"}}, {}) | {"clean": {"step": "sanitize", "from": "small"}}
    steps["agree"]["candidate"] = "clean"
    steps = {name: steps[name] for name in ("small", "clean", "agree")}
    assert list(doubted(steps)) == ["agree"]


@pytest.mark.usefixtures("in_folder")
def test_the_plan_the_end_and_the_page_show_the_doubt() -> None:
    recipe = write(both({"data": {"x": "a[0-3].npy"}}, {}), MASKED)
    words = "agree judges small on 4 of 8 files"
    decisions = api.plan(recipe)
    assert isinstance(decisions, list)
    assert any(words in note for note in decisions[1].foresee().notes)
    assert not any(words in note for note in decisions[0].foresee().notes)
    finished = api.run(recipe)
    assert isinstance(finished, RunFinished)
    assert any(words in line and line.startswith("warning") for line in finished.verdict)
    assert words in Path(finished.report).read_text()


def judged(steps: dict[str, Any], inputs: dict[str, Any]) -> tuple[Accuracy, str]:
    """Return the record of a check, and the page of its run."""
    finished = api.run(write(steps, inputs))
    assert isinstance(finished, RunFinished)
    accuracy, page = Path(finished.artifacts["agree"]).read_text(), Path(finished.report).read_text()
    return Accuracy.model_validate_json(accuracy), page


@pytest.mark.usefixtures("in_folder")
def test_the_verdict_is_from_samples_that_the_calibration_did_not_see() -> None:
    accuracy, page = judged(both({}, {}), MASKED)
    assert [sample.sample for sample in accuracy.samples] == ["a2.npy, mask.npy", "a5.npy, mask.npy"]
    assert accuracy.seen is not None and not accuracy.seen.are_judged
    assert list(accuracy.seen.by) == ["small"]
    assert accuracy.seen.by["small"] == tuple(f"a{i}.npy, mask.npy" for i in (0, 1, 3, 4, 6, 7))
    assert "Judged on 2 samples" in page


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("data", ["a[01].npy", "a0.npy"])
def test_the_verdict_reports_that_there_are_no_other_samples(data: str) -> None:
    accuracy, page = judged(both({}, {}), {"x": {"data": data}, "m": {"data": "mask.npy"}})
    assert accuracy.seen is not None and accuracy.seen.are_judged
    assert f"{counted(accuracy.sample_count, 'sample')} that small saw too" in page


@pytest.mark.usefixtures("in_folder")
def test_generated_samples_are_others() -> None:
    accuracy, _ = judged(both({"samples": 4}, {"samples": 2}), RANDOM)
    assert accuracy.seen is not None and not accuracy.seen.are_judged
    assert accuracy.seen.by == {"small": tuple(f"random, seed {i}" for i in range(4))}
    assert [sample.sample for sample in accuracy.samples] == ["random, seed 4", "random, seed 5"]


@pytest.mark.usefixtures("in_folder")
def test_rows_of_one_file_are_held_out_like_files() -> None:
    np.save("rows.npy", np.random.default_rng(0).uniform(-1, 1, (6, 4, 8)).astype(np.float32))
    accuracy, _ = judged(both({}, {"samples": 1}), {"x": {"data": "rows.npy"}, "m": {"data": "mask.npy"}})
    assert [sample.sample for sample in accuracy.samples] == ["rows.npy row 2, mask.npy"]


@pytest.mark.usefixtures("in_folder")
def test_a_calibration_with_a_check_sees_two_of_three_samples() -> None:
    api.run(write(both({}, {}), MASKED))
    with_check = api.plan(write(both({}, {}), MASKED))
    alone = api.plan(write({"small": SMALL}, MASKED))
    assert isinstance(with_check, list) and isinstance(alone, list)
    assert with_check[0].key != alone[0].key
