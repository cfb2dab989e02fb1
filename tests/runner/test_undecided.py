"""Outcomes of runs, points and reports with undecided gates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.plan import Reason
from ndld_flow.runs.list_runs import list_runs
from ndld_flow.runs.outputs import Outputs
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

# Process runs whose interval contains the limit, on another machine: there is nothing more to measure.
MADE_UP = """
from pathlib import Path

from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Profile, ProfileRun
from ndld_flow.plugin import Context, Onnx, ProfileDocument, Result, Step

MACHINE = Machine(system="", architecture="", cpu="another", cpu_count=1, memory_bytes=1)


class MadeUp(Step[Onnx, ProfileDocument]):
    \"\"\"Write a profile without measuring.\"\"\"

    ms: tuple[float, ...] = (10.8, 10.9, 11.0, 11.1, 11.2)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        runs = tuple(ProfileRun(latency_ms=(ms,) * 3) for ms in self.ms)
        profile = Profile(
            label=source.label, model_digest=str(self.ms), backend="onnxruntime", machine=MACHINE, versions={},
            options={}, inputs=(), outputs=(), warmup_passes=0, warmup_ms=0, runs=runs, session="one",
        )
        (out / ProfileDocument.main).write_text(profile.to_json())
        return Result("made up")
"""
RECIPE = """
name: undecided
model: model.onnx
steps_from: [made_up.py]
steps:
  base: {step: made_up, ms: [10.0, 10.0, 10.0, 10.0, 10.0]}
  speed: {step: made_up}
  decide: {step: compare_profiles, base: base, allow: [unknown], gates: ["latency.median <= +10 %"]}
"""
SWEEP = """
sweep:
  over:
    speed.ms: [[10.8, 10.9, 11.0, 11.1, 11.2], [10.7, 10.9, 11.0, 11.1, 11.3]]
"""


@pytest.fixture
def recipe(in_folder: Path) -> Path:
    make_cnn(in_folder / "model.onnx")
    (in_folder / "made_up.py").write_text(MADE_UP)
    (in_folder / "undecided.yaml").write_text(RECIPE)
    return Path("undecided.yaml")


def run(*arguments: str | Path) -> tuple[int, list[str]]:
    ended = ndld_flow("run", *map(str, arguments), "--trust", cwd=Path.cwd())
    return ended.returncode, ended.stdout.splitlines()


def test_an_undecided_gate_is_reported_and_ends_the_run_with_4(recipe: Path) -> None:
    code, lines = run(recipe)
    assert code == 4
    assert any(
        re.match(r"decide: inconclusive in .*gate `latency.median <= \+10 %` inconclusive", line) for line in lines
    )
    reason = "decide is undecided: gate `latency.median <= +10 %` inconclusive"
    assert any(line.startswith("INCONCLUSIVE undecided in ") and reason in line for line in lines)
    folder = Path("outputs/runs/undecided/latest")
    record = RunRecord.model_validate_json((folder / "run.json").read_text())
    assert (record.passed, record.outcome, record.steps[-1].outcome) == (False, "inconclusive", "inconclusive")
    page = (folder / "report.html").read_text()
    assert '<span class="outcome inconclusive">Inconclusive</span>' in page
    assert "decide is undecided: gate " in page
    (listed,) = list_runs(Outputs(Path("outputs")))
    assert listed.outcome == "inconclusive" and listed.why.startswith(reason)
    code, lines = run(recipe)
    assert code == 4
    assert "was INCONCLUSIVE" in lines[-2]


@pytest.mark.parametrize(("word", "code"), [("pass", 0), ("fail", 1)])
def test_undecided_gates_can_be_set_to_pass_or_fail(recipe: Path, word: str, code: int) -> None:
    finished = api.run(recipe, [f"+steps.decide.when_undecided={word}"], trust=True)
    assert finished.exit_code == code
    assert finished.passed == (word == "pass")


def test_a_failed_gate_weighs_more_than_an_undecided_one(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace('["latency', '["latency.median <= -99 %", "latency'))
    assert api.run(recipe, trust=True).exit_code == 1


@pytest.mark.thorough
def test_a_sweep_of_undecided_points_ends_with_4(recipe: Path) -> None:
    recipe.write_text(RECIPE + SWEEP)
    code, lines = run(recipe)
    assert code == 4
    record = json.loads(Path("outputs/sweeps/undecided/latest/sweep.json").read_text())
    assert [point["outcome"] for point in record["points"]] == ["inconclusive"] * 2
    assert all("decide is inconclusive" in point["reason"] for point in record["points"])
    assert not record["passed"]
    assert any("2 inconclusive" in line for line in lines)
    page = Path("outputs/sweeps/undecided/latest/report.html").read_text()
    assert '<span class="outcome inconclusive">Inconclusive</span>' in page
    assert api.sweep(recipe, ["+steps.decide.when_undecided=pass"], trust=True).exit_code == 0


def test_a_lint_without_time_is_undecided_and_is_not_reused(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    gates = "gates: [check.errors <= 0, check.errors >= 1]"
    Path("hasty.yaml").write_text(
        f"name: hasty\nmodel: model.onnx\nsteps: {{check: {{step: lint, time_limit: 0 s}}}}\n{gates}"
    )
    for _ in range(2):
        api.run("hasty.yaml")
        record = RunRecord.model_validate_json(Path("outputs/runs/hasty/latest/run.json").read_text())
        (ran,) = record.steps
        assert (ran.outcome, ran.record and ran.record.inconclusive) == ("inconclusive", True)
        holds, fails = record.gates
        assert (holds.passed, bool(holds.undecided)) == (False, True)
        assert (fails.passed, fails.undecided) == (False, "")
    Path("hasty.yaml").write_text(Path("hasty.yaml").read_text().replace(", check.errors >= 1", ""))
    assert api.run("hasty.yaml").exit_code == 4
    plan = api.plan("hasty.yaml")
    assert isinstance(plan, list)
    assert [decided.reason for decided in plan] == [Reason.NEVER]
