"""The step compare_profiles: its inputs, outputs and messages."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_record import RunRecord
from ndld_flow.step import Context, Result
from ndld_flow.steps.compare_profiles import CompareProfiles
from ndld_flow.store.kinds import ComparisonDocument, ProfileDocument
from tests.support.compare_samples import layer, profile_of, steady
from tests.support.models import make_cnn

RECIPE = """
name: pair
model: model.onnx
steps:
  base: {step: profile, from: source, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 2, stable: 0 %}
  speed: {step: profile, from: source, runs: 2, passes: 4, warmup: 0, duration: 0, layer_passes: 2, stable: 0 %}
  agree: {step: compare_profiles, base: base, gates: [GATE], when_undecided: HOW, rounds: 0}
gates: ["agree.latency.min.ratio <= 100"]
"""


def compare(folder: Path, base: Profile, candidate: Profile, **settings: Any) -> tuple[Result, Comparison]:
    documents = {}
    for name, profile in (("base", base), ("speed", candidate)):
        (folder / name).mkdir()
        path = folder / name / ProfileDocument.main
        path.write_text(profile.to_json())
        documents[name] = ProfileDocument(path, name, "")
    out = folder / "out"
    out.mkdir()
    step = CompareProfiles.model_validate_json(CompareProfiles(base="base", **settings).model_dump_json())
    context = Context(
        "agree", {}, {"base": documents["base"]}, folder, logging.getLogger("test"), lambda *_: None, Path()
    )
    done = step.run(documents["speed"], out, context)
    return done, Comparison.model_validate_json((out / ComparisonDocument.main).read_text())


def test_it_compares_the_candidate_with_the_base(tmp_path: Path) -> None:
    layers = [layer("a", nodes="a", ms=(1.0,))]
    done, found = compare(tmp_path, steady(*[10.0] * 5, layers=layers), steady(*[8.0] * 5, layers=layers))
    assert done.passed
    assert done.summary.startswith("improved: latency.min 10.0 ms -> 8.00 ms")
    assert "\n" not in done.summary
    assert done.metrics["latency.min.ratio"] == pytest.approx(0.8)
    assert done.metrics["latency.median.ratio_high"] == pytest.approx(0.8)
    assert done.metrics["layers.matched_share"] == 1
    assert [subject.label for subject in found.subjects] == ["base", "speed"]
    assert found.profiles[0].steps == ("base", "speed")
    assert found.verdict == "improved"


@pytest.mark.parametrize(
    ("gate", "how", "passed"),
    [
        ("latency.min <= +5 %", "pass", False),
        ("latency.min <= +15 %", "fail", True),
        ("latency.min <= +10 %", "pass", True),
        ("latency.min <= +10 %", "fail", False),
    ],
)
def test_gates_decide_the_outcome(tmp_path: Path, gate: str, how: Any, passed: bool) -> None:
    base, candidate = steady(*[10.0] * 5), steady(10.8, 10.9, 11.0, 11.1, 11.2)
    done, found = compare(tmp_path, base, candidate, gates=(gate,), when_undecided=how)
    assert done.passed == passed
    assert (gate in done.summary) == (found.gates[0].outcome != "passed")


def test_without_a_gate_it_reports_and_does_not_fail(tmp_path: Path) -> None:
    done, found = compare(tmp_path, steady(*[10.0] * 5), steady(*[20.0] * 5))
    assert done.passed
    assert found.verdict == "regressed"


def test_incomparable_profiles_fail_their_gates(tmp_path: Path) -> None:
    pair = steady(*[10.0] * 5), steady(*[10.0] * 5, versions={"onnxruntime": "1.30"})
    done, _ = compare(tmp_path, *pair, gates=("latency.min <= +5 %",))
    assert not done.passed
    assert "--allow versions" in done.summary


def test_circumstances_may_be_allowed(tmp_path: Path) -> None:
    pair = steady(*[10.0] * 5), steady(*[10.0] * 5, versions={"onnxruntime": "1.30"})
    assert compare(tmp_path, *pair, gates=("latency.min <= +5 %",), allow=("versions",))[0].passed


def test_threshold_and_metric_are_settings(tmp_path: Path) -> None:
    base, candidate = profile_of([[10.0, 20.0, 20.0]] * 5), profile_of([[10.0, 24.0, 24.0]] * 5)
    _, found = compare(tmp_path, base, candidate, metric="latency.median", threshold=0.25)
    assert (found.profiles[0].decided_by, found.verdict) == ("latency.median", "unchanged")


def run(folder: Path, gate: str, how: str) -> RunRecord:
    make_cnn(folder / "model.onnx")
    (folder / "pair.yaml").write_text(RECIPE.replace("GATE", gate).replace("HOW", how))
    return RunRecord.model_validate_json((Path(api.run("pair.yaml").folder) / "run.json").read_text())


@pytest.mark.thorough
def test_profiles_of_one_recipe_are_compared(in_folder: Path) -> None:
    record = run(in_folder, '"latency.min <= +900 %"', "pass")
    assert record.passed
    step = record.steps[-1].record
    assert step is not None
    assert step.artifact.kind == "comparison"
    assert step.metrics["layers.matched_share"].value == 1


def test_a_wrong_gate_is_a_mistake_in_the_recipe(in_folder: Path) -> None:
    with pytest.raises(RecipeError) as error:
        run(in_folder, '"latency.min <= 5 %"', "pass")
    (problem,) = error.value.problems
    assert problem.path == "steps.agree.gates"
    assert "write `+5 %`" in problem.what
