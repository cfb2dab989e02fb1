"""Grid, one at a time, random and hill climb: their points and the order."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.sweep_search.search import Direction, Method, Saturation, SearchOptions, Trial
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Assignment, Choices, Numbers, Space, all_tried
from tests.support.message_files import CheckMessage
from tests.support.search_landscapes import LANDSCAPES, Landscape, near_best
from tests.support.search_spaces import identities, play, points_of, some_answer, spaces

PLAIN: tuple[Method, ...] = ("grid", "one_at_a_time", "random", "hill_climb")
EXHAUSTIVE: tuple[Method, ...] = ("grid", "random", "hill_climb")
ONE: tuple[Direction, ...] = ("minimize",)
SATURATIONS = (None, Saturation(), Saturation(gain=0.5, points=1), Saturation(along="a"))

SMALL = Space((Choices("a", ("x", "y")), Numbers("n", 1, 3, integer=True)))
LARGE = Space(tuple(Numbers(name, 1, 1000, integer=True) for name in "ab"), ({"b": tuple(range(2, 1000))},))


def ask_all(space: Space, options: SearchOptions) -> list[Assignment]:
    return play(make_search(space, options), some_answer, itertools.repeat(3))


@pytest.mark.parametrize("method", EXHAUSTIVE)
@settings(deadline=None, max_examples=20)
@given(space=spaces(), seed=st.integers(0, 3))
def test_a_finite_space_is_exhausted_without_repetition(method: Method, space: Space, seed: int) -> None:
    search = make_search(space, SearchOptions(method, ONE, seed=seed))
    asked = play(search, some_answer, itertools.repeat(5))
    expected = points_of(space)
    assert sorted(identities(asked)) == sorted(identities(expected))
    assert search.size == len(expected)
    assert search.stopped_because == all_tried(len(expected))


@pytest.mark.parametrize("method", PLAIN)
@settings(deadline=None, max_examples=20)
@given(space=spaces(), counts=st.lists(st.integers(1, 9)), saturation=st.sampled_from(SATURATIONS))
def test_the_batch_size_does_not_change_the_points(
    method: Method, space: Space, counts: list[int], saturation: Saturation | None
) -> None:
    if saturation and saturation.along and not space.axes:
        return
    options = SearchOptions(method, ONE, seed=1, saturation=saturation, points=40)
    first = play(make_search(space, options), some_answer, itertools.repeat(1))
    search = make_search(space, options)
    again = play(search, some_answer, itertools.chain(counts, itertools.repeat(8)))
    assert identities(again) == identities(first)
    assert len(set(identities(first))) == len(first) <= min(40, search.size or 40)
    assert set(identities(first)) <= set(identities(points_of(space)))
    assert search.stopped_because
    assert search.ask(4) == []


def test_the_last_axis_of_a_grid_varies_fastest() -> None:
    asked = ask_all(SMALL, SearchOptions())
    assert [tuple(point.values()) for point in asked] == [*itertools.product(("x", "y"), (1, 2, 3))]


def test_a_grid_is_cut_by_its_budget_and_reports_it() -> None:
    search = make_search(SMALL, SearchOptions(points=4))
    assert (search.size, search.stopped_because) == (4, "")
    asked = play(search, some_answer, itertools.repeat(3))
    assert asked == ask_all(SMALL, SearchOptions())[:4]
    assert search.stopped_because == "4 of 6 points: the budget"


@pytest.mark.parametrize("method", PLAIN)
def test_a_sufficient_budget_is_not_reported_as_the_reason(method: Method) -> None:
    search = make_search(SMALL, SearchOptions(method, ONE, points=6))
    asked = play(search, some_answer, itertools.repeat(4))
    assert search.stopped_because == all_tried(len(asked))


@pytest.mark.parametrize("method", ["grid", "one_at_a_time"])
def test_a_continuous_axis_is_refused_for_a_grid(method: Method, check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        make_search(Space((Choices("a", (1,)), Numbers("b", 0.5, 2))), SearchOptions(method, ONE))
    check_message(caught.value)


@pytest.mark.parametrize("method", EXHAUSTIVE)
def test_a_large_space_with_few_points_is_searched(method: Method) -> None:
    search = make_search(LARGE, SearchOptions(method, ONE, points=1000))
    asked = play(search, some_answer, itertools.repeat(50))
    assert len(set(identities(asked))) == 1000 == search.size
    assert {point["b"] for point in asked} <= {1, 1000}


@pytest.mark.parametrize("method", EXHAUSTIVE)
def test_the_few_remaining_points_are_found(method: Method) -> None:
    axes = tuple(Numbers(name, 1, 10**3, integer=True, log=True) for name in "ab")
    space = Space(axes, ({"a": tuple(range(1, 1000))}, {"b": (*range(1, 500), *range(502, 1001))}))
    asked = ask_all(space, SearchOptions(method, ONE))
    assert sorted(str(point["b"]) for point in asked) == ["500", "501"]


def test_one_at_a_time_varies_the_recipe() -> None:
    space = Space((Choices("a", (4, 1, 2)), Numbers("n", 0.5, 1, step=0.25)))
    asked = ask_all(space, SearchOptions("one_at_a_time", start={"a": 1, "n": 0.75}))
    assert [tuple(point.values()) for point in asked] == [(1, 0.75), (4, 0.75), (2, 0.75), (1, 0.5), (1, 1.0)]


@pytest.mark.parametrize("start", [None, {"a": 7, "n": 0.5}, {"n": 0.6}])
def test_one_at_a_time_uses_first_values_where_the_recipe_has_none(start: Assignment | None) -> None:
    space = Space((Choices("a", (4, 1)), Numbers("n", 0.5, 1, step=0.25)), ({"a": (1,), "n": (0.5,)},))
    asked = ask_all(space, SearchOptions("one_at_a_time", start=start))
    assert [tuple(point.values()) for point in asked] == [(4, 0.5), (4, 0.75), (4, 1.0)]


def test_one_at_a_time_continues_when_the_recipe_is_excluded() -> None:
    space = replace(SMALL, exclude=({"a": ("x",), "n": (1,)},))
    asked = ask_all(space, SearchOptions("one_at_a_time", start={"a": "x", "n": 1}))
    assert [tuple(point.values()) for point in asked] == [("y", 1), ("x", 2), ("x", 3)]


def test_points_depend_on_the_seed() -> None:
    first, again, other = (ask_all(LARGE, SearchOptions("random", seed=seed, points=20)) for seed in (3, 3, 4))
    assert first == again
    assert not set(identities(first)) & set(identities(other))


def test_each_point_is_equally_likely() -> None:
    firsts = Counter(str(ask_all(SMALL, SearchOptions("random", seed=seed, points=2))[1]) for seed in range(1200))
    assert len(firsts) == 6
    # 200 each are expected, with a standard deviation of 13.
    assert all(140 < count < 260 for count in firsts.values())


@pytest.mark.parametrize(
    "axis",
    [
        Numbers("n", 1, 10**4, integer=True, log=True),
        Numbers("n", 1, 10**4, log=True),
        Numbers("n", 1, 10**4, step=0.5, log=True),
    ],
)
def test_doublings_are_equally_likely_on_a_logarithmic_axis(axis: Numbers) -> None:
    def below_a_hundred(axis: Numbers) -> int:
        options = [SearchOptions("random", seed=seed, points=4) for seed in range(100)]
        asked = (point for option in options for point in ask_all(Space((axis,)), option))
        return sum(float(str(point["n"])) < 100 for point in asked)

    assert below_a_hundred(axis) == pytest.approx(200, abs=50)
    assert below_a_hundred(replace(axis, log=False)) < 20


def test_random_points_of_a_continuous_axis_are_endless() -> None:
    space = Space((Choices("a", (1, 2, 3)), Numbers("n", 0, 1)), ({"a": (1, 3)},))
    search = make_search(space, SearchOptions("random", points=50))
    asked = play(search, some_answer, itertools.repeat(8))
    assert (len(set(identities(asked))), search.size, search.stopped_because) == (50, 50, "50 points: the budget")
    assert {point["a"] for point in asked} == {2}
    nothing = make_search(replace(space, exclude=({"a": (1, 2, 3)},)), SearchOptions("random"))
    assert (nothing.ask(3), nothing.size, nothing.stopped_because) == ([], 0, "all 0 points tried")
    single = make_search(Space((Choices("a", (1,)),)), SearchOptions("random"))
    assert (len(single.ask(3)), single.stopped_because) == (1, "the only point tried")


def by_height(point: Assignment) -> Trial:
    return Trial(point, (abs(float(str(point["n"])) - 7),))


def test_a_climb_tries_all_neighbours_and_moves_to_the_best() -> None:
    space = Space((Choices("n", (4, 16, 8, 2, 1)), Choices("kind", ("p", "q", "r"))))
    search = make_search(space, SearchOptions("hill_climb", ONE, start={"n": 2, "kind": "q"}))
    steps = [search.ask(8)]
    for _ in range(3):
        search.tell([by_height(point) for point in steps[-1]])
        steps.append(search.ask(8))
    assert [[tuple(point.values()) for point in step] for step in steps] == [
        [(2, "q")],
        [(1, "q"), (4, "q"), (2, "p"), (2, "r")],
        [(8, "q"), (4, "p"), (4, "r")],
        [(16, "q"), (8, "p"), (8, "r")],
    ]


def test_a_climb_restarts_elsewhere_at_a_local_optimum() -> None:
    space = Space((Numbers("n", 0, 30, integer=True),))
    search = make_search(space, SearchOptions("hill_climb", ONE, start={"n": 7}))
    asked = play(search, by_height, itertools.repeat(2))
    numbers = [int(str(point["n"])) for point in asked]
    # A quarter away, half of that, half of that, the next; then somewhere.
    assert numbers[:7] == [7, 0, 14, 3, 11, 5, 9]
    assert set(numbers[7:9]) == {6, 8}
    assert sorted(numbers) == list(range(31))


def test_a_climb_on_a_continuous_axis_comes_close() -> None:
    space = Space((Numbers("n", 0, 100), Numbers("m", 0.01, 100, log=True)))
    search = make_search(space, SearchOptions("hill_climb", ("maximize",), points=120, start={"n": 90, "m": 50}))
    asked = play(
        search,
        lambda point: Trial(
            point, (-(abs(float(str(point["n"])) - 31) / 100 + abs(math.log10(float(str(point["m"]))))),)
        ),
        itertools.repeat(8),
    )
    assert min(abs(float(str(point["n"])) - 31) for point in asked) < 1
    assert min(abs(math.log10(float(str(point["m"])))) for point in asked) < 0.05


def test_a_climb_looks_for_feasible_points_first() -> None:
    """From a failure to what is refused, then to what is refused by less, then to what is allowed."""

    def answer(point: Assignment) -> Trial:
        n = int(str(point["n"]))
        if n == 0:
            return Trial(point, None)
        return Trial(point, None if n < 5 else (float(n),), violation=max(0.0, 8.0 - n))

    space = Space((Choices("n", tuple(range(12))),))
    asked = play(make_search(space, SearchOptions("hill_climb", ONE)), answer, itertools.repeat(1))
    # Three at a time; 8 is the least of what is allowed.
    assert [point["n"] for point in asked][:7] == [0, 3, 6, 9, 11, 8, 10]


def test_a_restarted_climb_continues_from_its_start() -> None:
    space = Space((Numbers("n", 0, 4000, integer=True),))
    search = make_search(space, SearchOptions("hill_climb", ONE, points=60, start={"n": 0}))
    asked = play(search, lambda point: Trial(point, (float(str(point["n"])),)), itertools.repeat(1))
    numbers = [int(str(point["n"])) for point in asked]
    # Nothing is better than 0; after its nearest neighbour a place is drawn, then comes what is a quarter away from it.
    elsewhere = numbers[numbers.index(1) + 1 :]
    assert elsewhere[1:3] == [elsewhere[0] - 1000, min(4000, elsewhere[0] + 1000)]


@pytest.mark.parametrize("directions", [(), ("minimize", "maximize")])
def test_a_climb_needs_one_objective(directions: tuple[Direction, ...], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        make_search(SMALL, SearchOptions("hill_climb", directions))
    check_message(caught.value)


@pytest.mark.representatives("session", "accuracy bound")
@pytest.mark.parametrize("landscape", LANDSCAPES, ids=lambda landscape: landscape.name)
def test_a_climb_finds_good_points_more_often_than_chance(landscape: Landscape) -> None:
    assert near_best(landscape, "hill_climb") > near_best(landscape, "random")
