"""`plan` of a sweep agrees with the following `run`, whatever results exist."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from ndld_flow.base.errors import RequestError
from ndld_flow.cli.app import program
from tests.support.message_files import CheckMessage
from tests.support.sweep_toys import GAUGE, RECIPE, SweepToy, make_sweep_toy

TWO_DEVICES = RECIPE.replace("steps/gauge.py]", "steps/gauge.py, steps/weigh.py]").replace(
    "  speed: {", "  mass: {step: weigh, from: tint}\n  speed: {from: tint, "
)
STATES = {
    "nothing there": (None, RECIPE, ()),
    "all there": (RECIPE, RECIPE, ()),
    "transforms there": (RECIPE + "  together: 3\n", RECIPE, ()),
    "half of the sessions there": (RECIPE.replace("[red, green]", "[red]"), RECIPE + "  together: 3\n", ()),
    "winners not measured again": (RECIPE + "  winners: 0\n", RECIPE, ()),
    "forced measurement": (RECIPE, RECIPE, ("speed",)),
    "two devices": (TWO_DEVICES + "  together: 3\n", TWO_DEVICES + "  together: 3\n", ()),
    "two devices, other sessions": (TWO_DEVICES + "  together: 3\n", TWO_DEVICES, ()),
    "some refused": (RECIPE, RECIPE.replace("[1, 2, 4]", "[1, 2, 4, 8]") + "  subject_to: [speed.ms <= 10]\n", ()),
}


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepToy:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    toy = make_sweep_toy(in_folder)
    weigh = GAUGE.replace("class Gauge", "class Weigh").replace('"scales"', '"balance"').replace('"gauge "', '"weigh "')
    (in_folder / "steps" / "weigh.py").write_text(weigh)
    return toy


def work(lines: list[str]) -> Counter[str]:
    """Return the number of computations of steps by name; those of a session are one line."""
    return Counter(name.split("#")[0] for line in lines for name in line.split()[1].split("+"))


REPEATED = ("winners not measured again", "two devices, other sessions")
"""States whose parts occur in the other states."""


@pytest.mark.representatives("all there", "some refused")
@pytest.mark.parametrize(
    "state", [pytest.param(state, marks=[pytest.mark.thorough] * (state in REPEATED)) for state in STATES]
)
def test_a_plan_matches_the_following_run(toy: SweepToy, state: str) -> None:
    before, recipe, forced = STATES[state]
    if before is not None:
        toy.write(before).finish()
    worked = len(toy.log)
    toy.write(recipe)
    plan = toy.plan(*forced)
    assert len(toy.log) == worked
    finished = toy.force(*forced)
    new = [session for session in toy.record(finished).sessions if not session.reused and not finished.nothing_to_do]
    last = [session for session in new if session.again]
    done = work(toy.log[worked : len(toy.log) - len(last)])
    todo = {step.name: step.distinct - step.stored for step in plan.steps}
    assert +Counter(todo) == done
    assert plan.remeasured == (None if done["speed"] else last[0].points if last else ())


def test_a_plan_computes_and_writes_nothing(toy: SweepToy) -> None:
    toy.finish()
    toy.write(RECIPE.replace("[1, 2, 4]", "[1, 2, 4, 8]"))
    store = toy.outputs / "store"

    def written() -> set[Path]:
        return {path for part in ("records", "objects", "building") for path in (store / part).rglob("*")}

    before, worked = written(), len(toy.log)
    toy.plan()
    assert written() == before
    assert len(toy.log) == worked


def test_a_plan_reports_that_only_the_best_are_measured_again(toy: SweepToy) -> None:
    toy.write(RECIPE + "  winners: 0\n").finish()
    toy.write(RECIPE)
    said = CliRunner().invoke(program, ["plan", str(toy.recipe), "--trust", "--outputs", str(toy.outputs)])
    assert "measured again: points 2, 3, 6" in said.output
    said = CliRunner().invoke(
        program, ["plan", str(toy.recipe), "--trust", "--outputs", str(toy.outputs), "--force", "speed"]
    )
    assert "6 steps to run for 6" in said.output
    assert "best are measured again" in said.output


def test_readers_of_a_forced_step_may_be_reused(toy: SweepToy) -> None:
    toy.finish()
    plan = toy.plan("tint")
    assert {step.name: (step.distinct, step.stored) for step in plan.steps} == {
        "base": (1, 1),
        "tint": (2, 0),
        "speed": (6, 0),
    }
    assert toy.record(toy.force("tint")).steps_done == 2


def test_forcing_an_unknown_step_is_refused_in_a_plan(toy: SweepToy, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        toy.plan("nope")
    check_message(caught.value)
