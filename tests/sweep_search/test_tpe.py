"""TPE by Optuna: the points that it proposes, and the results reported to it."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow.base.errors import BackendError
from ndld_flow.sweep_search.search import Direction, SearchOptions, Trial
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Assignment, Choices, Numbers, Space, all_tried
from tests.support.message_files import CheckMessage
from tests.support.search_landscapes import LANDSCAPES, near_best
from tests.support.search_spaces import identities, play, points_of, some_answer, spaces

ONE: tuple[Direction, ...] = ("minimize",)
MIXED = Space(
    (
        Choices("kind", (None, True, "x", [1, 3], {"a": 1})),
        Choices("threads", (8, 1, 2, 4)),
        Numbers("share", 0.5, 2),
        Numbers("size", 1, 1000, integer=True, log=True),
    ),
    ({"kind": (True, "x"), "threads": (8,)}, {"kind": ([1, 3],)}),
)


def answer_one(point: Assignment) -> Trial:
    trial = some_answer(point)
    return Trial(point, trial.objectives and trial.objectives[:1], trial.violation)


@settings(deadline=None, max_examples=12)
@given(space=spaces(), counts=st.lists(st.integers(1, 9), max_size=8), two=st.booleans())
def test_a_finite_space_is_exhausted_deterministically(space: Space, counts: list[int], two: bool) -> None:
    answer = some_answer if two else answer_one
    options = SearchOptions("tpe", ("minimize", "maximize") if two else ONE, seed=2)
    batches = [*counts, *[20] * 10]
    search = make_search(space, options)
    first = play(search, answer, batches)
    assert sorted(identities(first)) == sorted(identities(points_of(space)))
    assert search.stopped_because == all_tried(len(first))
    assert identities(play(make_search(space, options), answer, batches)) == identities(first)


@pytest.mark.parametrize("directions", [ONE, ("maximize", "minimize")])
def test_no_point_is_repeated_or_excluded(directions: tuple[Direction, ...]) -> None:
    answer = answer_one if directions == ONE else some_answer
    options = SearchOptions("tpe", directions, points=60)
    search = make_search(MIXED, options)
    asked = play(search, answer, itertools.repeat(8))
    assert asked == play(make_search(MIXED, options), answer, itertools.repeat(8))
    assert (len(set(identities(asked))), search.stopped_because) == (60, "60 points: the budget")
    assert not [point for point in asked if point["kind"] == [1, 3]]
    assert not [point for point in asked if point["kind"] in (True, "x") and point["threads"] == 8]
    assert all(0.5 <= float(str(point["share"])) <= 2 and point["size"] in range(1, 1001) for point in asked)


def test_the_recipe_comes_first_when_it_is_a_point() -> None:
    start: dict[str, JsonValue] = {"kind": {"a": 1}, "threads": 4, "share": 1.25, "size": 100}
    assert make_search(MIXED, SearchOptions("tpe", ONE, start=start)).ask(3)[0] == start
    others: tuple[Assignment, ...] = (start | {"threads": 3}, start | {"kind": [1, 3]}, {"threads": 4})
    for elsewhere in others:
        assert make_search(MIXED, SearchOptions("tpe", ONE, start=elsewhere)).ask(1)[0] != elsewhere


def test_another_seed_proposes_other_points() -> None:
    first, other = (make_search(MIXED, SearchOptions("tpe", ONE, seed=seed)).ask(8) for seed in (0, 1))
    assert first != other


def test_failing_and_infeasible_regions_are_avoided() -> None:
    """Half of the space fails, a quarter is refused without being measured; the rest is all alike."""
    space = Space((Choices("fails", (True, False)), Numbers("n", 1, 60, integer=True), Choices("m", (1, 2, 3))))

    def answer(point: Assignment) -> Trial:
        if point["fails"]:
            return Trial(point, None)
        over = int(str(point["n"])) - 30
        return Trial(point, None, violation=over / 30) if over > 0 else Trial(point, (1.0,))

    asked = play(make_search(space, SearchOptions("tpe", ONE, points=80)), answer, itertools.repeat(4))
    passed = [answer(point).objectives is not None for point in asked]
    # A quarter would by chance.
    assert sum(passed[40:]) > 15


def test_nearly_feasible_points_are_preferred_to_failing_ones() -> None:
    space = Space((Numbers("n", 0, 199, integer=True),))

    def answer(point: Assignment) -> Trial:
        n = int(str(point["n"]))
        return Trial(point, None, violation=1 + n / 100 if n < 100 else 0.0)

    asked = play(make_search(space, SearchOptions("tpe", ONE, points=60)), answer, itertools.repeat(4))
    # After 15 at random; later the best are used up.
    assert sum(int(str(point["n"])) < 100 for point in asked[15:25]) > 7


@pytest.mark.parametrize(("direction", "low", "high"), [("minimize", 0, 299), ("maximize", 700, 999)])
def test_the_search_follows_the_objective(direction: Direction, low: int, high: int) -> None:
    space = Space((Numbers("n", 0, 999, integer=True),))
    search = make_search(space, SearchOptions("tpe", (direction,), points=60))
    asked = play(search, lambda point: Trial(point, (float(str(point["n"])),)), itertools.repeat(4))
    assert sum(low <= int(str(point["n"])) <= high for point in asked[15:25]) > 5


def test_a_missing_optuna_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BackendError) as caught:
        make_search(MIXED, SearchOptions("tpe", ONE))
    check_message(caught.value)


def test_a_search_without_an_objective_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        make_search(MIXED, SearchOptions("tpe"))
    check_message(caught.value)


def test_optuna_is_imported_only_when_it_is_used_and_prints_nothing() -> None:
    code = """if True:
        import itertools, sys
        from tests.sweep_search.test_tpe import MIXED, ONE, SearchOptions, answer_one, make_search, play
        import ndld_flow.sweep_search.searches
        assert "optuna" not in sys.modules
        search = make_search(MIXED, SearchOptions("tpe", ONE, points=20))
        assert len(play(search, answer_one, itertools.repeat(4))) == 20
        assert "optuna" in sys.modules
    """
    ran = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [pytest.param("session, noisy", marks=pytest.mark.thorough), "accuracy bound"])
def test_good_points_are_found_more_often_than_by_chance(name: str) -> None:
    landscape = next(landscape for landscape in LANDSCAPES if landscape.name == name)
    assert near_best(landscape, "tpe", seeds=10) >= near_best(landscape, "random", seeds=10) + 3
