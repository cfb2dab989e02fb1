"""A search ends when further points gain too little."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from ndld_flow.sweep_search.search import Direction, Method, Saturation, SearchOptions, Trial
from ndld_flow.sweep_search.searches import SaturatingAxis, make_search
from ndld_flow.sweep_search.space import Assignment, Choices, Numbers, Space
from tests.support.message_files import CheckMessage
from tests.support.search_spaces import play
from tests.support.text_facts import numbers_in

FAILED = object()
REFUSED = object()

LINE = Space((Numbers("n", 1, 9, integer=True),))
BATCHES = Space((Choices("model", ("small", "large")), Choices("batch", (1, 2, 4, 8, 16))))
THROUGHPUT = {"small": (10, 18, 30, 30.1, 30.2), "large": (10, 20, 40, 80, 160)}


def play_line(
    heights: Sequence[object], saturation: Saturation, direction: Direction = "minimize", at_once: int = 8
) -> tuple[int, str]:
    """Return the number of tried points with these successive values, and the reason for the end."""

    def answer(point: Assignment) -> Trial:
        height = heights[int(str(point["n"])) - 1]
        if height is FAILED:
            return Trial(point, None)
        return Trial(point, None, violation=0.5) if height is REFUSED else Trial(point, (float(str(height)), 0.0))

    search = make_search(LINE, SearchOptions("grid", (direction, "minimize"), saturation=saturation))
    return len(play(search, answer, itertools.repeat(at_once))), search.stopped_because


@pytest.mark.parametrize("at_once", [1, 2, 8])
@pytest.mark.parametrize(
    ("heights", "direction", "tried"),
    [
        ((100, 90, 80, 79, 78.5, 1, 1, 1, 1), "minimize", 5),
        ((100, 98, 96.5, 94, 93, 92, 91, 90, 89), "minimize", 9),  # 2 % each two points is enough
        ((10, 20, 30, 30.5, 30.1, 99, 99, 99, 99), "maximize", 5),
        ((-10, -20, -30, -30.5, -30.1, 0, 0, 0, 0), "minimize", 5),
        ((0, 0, 0, 5, 5, 5, 5, 5, 5), "minimize", 3),
        ((0, -1, -2, -2, -2, 5, 5, 5, 5), "minimize", 5),
        ((5, FAILED, REFUSED, 1, 1, 1, 1, 1, 1), "minimize", 3),
        ((5, FAILED, 4, REFUSED, 3, FAILED, 2, FAILED, 1), "minimize", 9),
        ((FAILED, REFUSED, FAILED, REFUSED, 5, 4, 4, 4, 4), "minimize", 8),
        ((5, 6, 7, 1, 1, 1, 1, 1, 1), "minimize", 3),
    ],
)
def test_a_search_ends_after_consecutive_points_with_too_little_gain(
    heights: Sequence[object], direction: Direction, tried: int, at_once: int
) -> None:
    because = "saturated: 2 points in a row gained less than 2 %" if tried < 9 else "all 9 points tried"
    assert play_line(heights, Saturation(), direction, at_once) == (tried, because)


def test_gain_and_points_are_settings() -> None:
    heights = (100, 95, 91, 88, 86, 85, 85, 85, 85)
    count, why = play_line(heights, Saturation(gain=0.1, points=1))
    assert (count, numbers_in(why)) == (2, [1, 10]) and why.startswith("saturated: ")
    # 91 is less by 9 %, 88 by 12 % of 100; then 86, 85 and 85 bring nothing.
    count, why = play_line(heights, Saturation(0.1, 3))
    assert (count, numbers_in(why)) == (7, [3, 10])


def test_a_gain_equal_to_the_minimum_is_enough() -> None:
    heights = (256, 128, 64, 32, 16, 8, 4, 2, 1)
    assert play_line(heights, Saturation(gain=0.5, points=1)) == (9, "all 9 points tried")
    a_little_less = (256, 128.01, 1, 1, 1, 1, 1, 1, 1)
    assert play_line(a_little_less, Saturation(gain=0.5, points=1))[0] == 2
    assert play_line((5, 5, 1, 1, 1, 1, 1, 1, 1), Saturation(gain=0, points=1))[0] == 2


def throughput(point: Assignment) -> Trial:
    batches = (1, 2, 4, 8, 16)
    return Trial(point, (THROUGHPUT[str(point["model"])][batches.index(int(str(point["batch"])))],))


def along_batches(**options: object) -> SearchOptions:
    settings: Mapping[str, object] = {"directions": ("maximize",), "saturation": Saturation(along="batch")} | options
    return SearchOptions(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("at_once", [1, 8])
def test_each_combination_of_other_settings_ends_independently(at_once: int) -> None:
    space = Space((*BATCHES.axes, Choices("fast", (True, False))), ({"model": ("small",), "fast": (False,)},))
    search = make_search(space, along_batches())
    asked = play(search, throughput, itertools.repeat(at_once))
    tried = [(point["model"], point["fast"], point["batch"]) for point in asked]
    assert tried == [
        *(("small", True, batch) for batch in (1, 2, 4, 8, 16)),
        *(("large", True, batch) for batch in (1, 2, 4, 8, 16)),
        *(("large", False, batch) for batch in (1, 2, 4, 8, 16)),
    ]
    assert (search.size, search.stopped_because) == (15, "all 15 points tried")


def test_a_ladder_that_ends_early_is_counted() -> None:
    saturation = Saturation(points=1, along="batch")
    search = make_search(BATCHES, along_batches(saturation=saturation))
    asked = play(search, throughput, itertools.repeat(8))
    assert [point["batch"] for point in asked] == [1, 2, 4, 8, 1, 2, 4, 8, 16]
    assert list(asked[0]) == ["model", "batch"]
    assert search.stopped_because.startswith("saturated along batch: ")
    assert numbers_in(search.stopped_because) == [1, 2, 1, 2]


def test_excluded_points_are_no_rungs_and_the_budget_counts_points() -> None:
    exclude = ({"model": ("small",), "batch": (1, 2, 4, 8, 16)}, {"model": ("large",), "batch": (2, 8)})
    search = make_search(Space(BATCHES.axes, exclude), along_batches())
    assert [point["batch"] for point in play(search, throughput, itertools.repeat(8))] == [1, 4, 16]
    search = make_search(BATCHES, along_batches(points=7))
    assert len(play(search, throughput, itertools.repeat(3))) == search.size == 7
    assert search.stopped_because == "7 of 10 points: the budget"


@pytest.mark.parametrize("method", ["random", "hill_climb", "tpe", "one_at_a_time"])
def test_any_method_searches_other_settings_by_the_best_of_each_ladder(method: Method) -> None:
    tried: list[str] = []

    def answer(point: Assignment) -> Trial:
        tried.append(str(point["n"]))
        height = abs(float(str(point["n"])) - 6) + 1 / float(str(point["batch"]))
        return Trial(point, (height,))

    space = Space((Choices("batch", (1, 2, 4)), Numbers("n", 0, 20, integer=True)))
    options = SearchOptions(method, ("minimize",), saturation=Saturation(along="batch"), start={"n": 8, "batch": 2})
    asked = play(make_search(space, options), answer, itertools.repeat(8))
    assert [point["batch"] for point in asked[:6]] == [1, 2, 4] * 2
    assert len(tried) == 63
    if method != "random":
        assert tried[0] == "8"
    if method == "hill_climb":
        # 8 first, a quarter away from it, then half as far.
        assert list(dict.fromkeys(tried))[:5] == ["8", "3", "13", "6", "10"]


def test_the_outer_search_gets_the_best_feasible_point() -> None:
    class Others:
        size = 1
        stopped_because = ""
        heard: Sequence[Trial] = ()

        def ask(self, count: int) -> list[Assignment]:
            return [] if self.heard else [{"model": "small"}]

        def tell(self, trials: Sequence[Trial]) -> None:
            self.heard = trials

    answers = {
        1: Trial({}, (1.0,), 0.5),
        2: Trial({}, None),
        4: Trial({}, (3.0,)),
        8: Trial({}, (5.0,)),
        16: Trial({}, (4.0,)),
    }
    others = Others()
    ladders = SaturatingAxis(BATCHES, others, Saturation(along="batch"), "maximize")
    play(ladders, lambda point: answers[int(str(point["batch"]))], itertools.repeat(8))
    assert list(others.heard) == [Trial({"model": "small"}, (5.0,))]


def test_saturation_needs_an_objective_and_an_axis(check_message: CheckMessage) -> None:
    def refused(space: Space, options: SearchOptions) -> str:
        with pytest.raises(ValueError) as error:
            make_search(space, options)
        return str(error.value)

    assert refused(LINE, SearchOptions(saturation=Saturation())).startswith("`saturation` requires an objective")
    check_message(refused(BATCHES, along_batches(saturation=Saturation(along="batches"))))
    between = Space((Numbers("n", 0, 1), *BATCHES.axes))
    check_message(refused(between, along_batches(method="random", saturation=Saturation(along="n"))))
