"""Gates against the history: the levels they use, and what they do without any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.execution.events import RunFinished
from ndld_flow.recipe.gates import GateError, parse_condition, parse_constraint, parse_gate
from ndld_flow.records.measurement import Metric
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import SweepToy, make_sweep_toy

MS = {"speed.ms": Metric(value=10.2, unit="ms"), "history.best": Metric(value=10.0, unit="ms")}


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("speed.ms <= history.best + 3 %", True),
        ("speed.ms <= history.best + 1 %", False),
        ("speed.ms <= 1.03 * history.best", True),
        ("speed.ms <= history.best + 0.1 ms", False),
        ("speed.ms - history.best <= 0.3 ms", True),
        ("history.best + 3 % >= speed.ms", True),
        ("speed.ms >= history.best - 3 %", True),
    ],
)
def test_a_percentage_is_relative_to_the_level(gate: str, passed: bool) -> None:
    parsed = parse_gate(gate)
    assert parsed.names == ["speed.ms"]
    parsed.check_units(lambda name: MS[name].unit)
    assert parsed.decide(MS).passed is passed


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_gate, "a.ms + b.ms <= history.best"),
        (parse_gate, "history.best <= history.last"),
        (parse_condition, "ms <= history.best"),
        (parse_constraint, "a.ms <= history.best"),
    ],
)
def test_a_level_without_a_meaning_is_refused(parse: object, text: str, check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as caught:
        parse(text)  # type: ignore[operator]
    check_message(caught.value)


def test_a_level_has_the_unit_of_the_metric(check_message: CheckMessage) -> None:
    with pytest.raises(GateError) as caught:
        parse_gate("speed.ms - history.best <= 3 MiB").check_units(lambda _: "ms")
    check_message(caught.value)


@pytest.fixture
def toy(in_folder: Path) -> SweepToy:
    toy = make_sweep_toy(in_folder)
    toy.write(toy.recipe.read_text() + 'gates: ["speed.ms <= history.best + 10 %"]\n')
    return toy


def run(toy: SweepToy, *overrides: str) -> RunFinished:
    finished = api.run(toy.recipe, ("~sweep", *overrides), trust=True)
    assert isinstance(finished, RunFinished)
    return finished


def test_the_first_run_is_inconclusive_and_the_next_is_compared_with_it(toy: SweepToy) -> None:
    first = run(toy, "steps.speed.threads=2")
    assert first.exit_code == 4
    assert "no earlier run" in first.gates[0].undecided
    again = run(toy, "steps.speed.threads=2")
    assert (again.exit_code, again.gates[0].undecided != "") == (4, True), "it is the same measurement"
    faster = run(toy, "steps.speed.threads=4")
    assert faster.exit_code == 0
    assert faster.gates[0].right == pytest.approx(7.7)
    assert "7.00 ms, from 1 measurement until 2" in faster.gates[0].note
    slower = run(toy, "steps.speed.threads=1")
    assert slower.exit_code == 1
    assert slower.gates[0].right == pytest.approx(6.05), "the median of 7 and 4, which are one level"


def test_a_run_that_failed_is_no_baseline(toy: SweepToy) -> None:
    run(toy, "steps.speed.threads=4")
    assert run(toy, "steps.speed.threads=1").exit_code == 1
    third = run(toy, "steps.speed.threads=2")
    assert third.gates[0].right == pytest.approx(4.4)


def test_terminal_and_report_have_the_reason(toy: SweepToy) -> None:
    words = ("run", toy.recipe.name, "~sweep", "steps.speed.threads=2", "--trust")
    done = ndld_flow(*words, cwd=toy.folder)
    assert done.returncode == 4
    assert "gate speed.ms <= history.best + 10" in done.stdout
    report = next((toy.folder / "outputs" / "runs").glob("*/2*/report.html")).read_text()
    assert "next run is compared" in report
    failed = ndld_flow("run", toy.recipe.name, "~sweep", "steps.speed.threads=1", "--trust", cwd=toy.folder)
    assert "(history.best is 7.00 ms, from 1" in failed.stdout
    recorded = json.loads(next((toy.folder / "outputs" / "runs").glob("*/latest/run.json")).read_text())
    assert recorded["gates"][0]["note"].startswith("history.best is")


def test_a_sweep_refuses_a_gate_against_the_history(toy: SweepToy, check_message: CheckMessage) -> None:
    with pytest.raises(RecipeError) as caught:
        api.run(toy.recipe, trust=True)
    check_message(caught.value)
