"""Main effects of settings, computed from given points."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow.sweep_search.ranking import Effect, Observed, main_effects

AXES: dict[str, tuple[JsonValue, ...]] = {"threads": (1, 2), "level": ("basic", "all", "extended")}


def observe(axes: dict[str, tuple[JsonValue, ...]], cost: Callable[..., float]) -> list[Observed]:
    """Every combination, at what it costs."""
    return [
        Observed(dict(zip(axes, values, strict=True)), cost(*values)) for values in itertools.product(*axes.values())
    ]


def levels(effect: Effect) -> dict[str, float]:
    return {str(level.values[0]): level.median for level in effect.levels}


def test_other_settings_of_a_grid_cancel_out() -> None:
    points = observe(AXES, lambda threads, level: 10 / threads * {"basic": 1.0, "all": 0.8, "extended": 0.9}[level])
    threads, level = main_effects(AXES, points)
    assert (threads.axis, threads.paired, level.axis, level.paired) == ("threads", True, "level", True)
    first, second = threads.levels
    assert first.observed == pytest.approx([first.median] * 3)
    assert first.median / second.median == pytest.approx(2)
    assert [item.values for item in level.levels] == [("basic",), ("all",), ("extended",)], "in the axis' order"
    assert level.levels[1].median / level.levels[0].median == pytest.approx(0.8)
    # The middle of all is kept: 10 and 5 by geometric mean.
    middle = statistics.geometric_mean([point.objective for point in points])
    assert statistics.geometric_mean([first.median, second.median]) == pytest.approx(middle)


def test_effects_are_sorted_by_size() -> None:
    points = observe(AXES, lambda threads, level: 10 - 0.1 * threads + {"basic": 0, "all": 5, "extended": 1}[level])
    effects = main_effects(AXES, points)
    assert [effect.axis for effect in effects] == ["level", "threads"]
    assert effects[0].size > 10 * effects[1].size


def test_non_positive_objectives_are_compared_by_differences() -> None:
    points = observe({"a": (1, 2), "b": (1, 2, 3)}, lambda a, b: a - 5.0 * b)
    effect = next(item for item in main_effects({"a": (1, 2), "b": (1, 2, 3)}, points) if item.axis == "a")
    assert effect.paired
    assert effect.levels[1].median - effect.levels[0].median == pytest.approx(1)
    assert all(len({round(item, 9) for item in level.observed}) == 1 for level in effect.levels)


def test_one_at_a_time_points_are_compared_with_their_base() -> None:
    base: dict[str, JsonValue] = {"threads": 1, "level": "basic"}
    points = [
        Observed(base, 10),
        Observed(base | {"threads": 2}, 5),
        Observed(base | {"level": "all"}, 8),
        Observed(base | {"level": "extended"}, 9),
    ]
    result = {effect.axis: effect for effect in main_effects(AXES, points)}
    assert result["threads"].paired
    assert [len(level.observed) for level in result["threads"].levels] == [1, 1], "not the points of other levels"
    assert levels(result["threads"])["1"] / levels(result["threads"])["2"] == pytest.approx(2)
    assert levels(result["level"])["all"] / levels(result["level"])["basic"] == pytest.approx(0.8)


def test_a_failed_point_excludes_only_its_block() -> None:
    points = observe(AXES, lambda threads, level: 10 / threads * {"basic": 1.0, "all": 0.8, "extended": 0.9}[level])
    left = [point for point in points if point.values != {"threads": 1, "level": "all"}]
    threads = next(effect for effect in main_effects(AXES, left) if effect.axis == "threads")
    assert threads.paired
    assert [len(level.observed) for level in threads.levels] == [2, 2]
    assert threads.levels[0].median / threads.levels[1].median == pytest.approx(2)


def test_a_value_that_no_point_reached_is_not_reported() -> None:
    points = observe({"threads": (1, 2), "level": ("basic", "all")}, lambda threads, level: 10 / threads)
    axes: dict[str, tuple[JsonValue, ...]] = {"threads": (1, 2, 4), "level": ("basic", "all")}
    threads = next(effect for effect in main_effects(axes, points) if effect.axis == "threads")
    assert [level.values for level in threads.levels] == [(1,), (2,)]
    assert threads.paired


def test_unpaired_points_are_pooled() -> None:
    points = [Observed({"x": 1, "y": index}, index + 10.0 * (index % 2)) for index in range(1, 6)]
    points += [Observed({"x": 2, "y": index + 100}, float(index)) for index in range(1, 4)]
    effect = next(item for item in main_effects({"x": (1, 2), "y": (1, 2)}, points) if item.axis == "x")
    assert not effect.paired
    assert effect.levels[0].observed == (2, 4, 11, 13, 15)
    assert effect.levels[1].median == 2


def test_many_numbers_are_reported_in_groups_of_neighbours() -> None:
    values = tuple(range(100))
    points = [Observed({"passes": value}, float(value)) for value in values]
    (effect,) = main_effects({"passes": values}, points)
    assert [level.values for level in effect.levels] == [(0, 19), (20, 39), (40, 59), (60, 79), (80, 99)]
    assert [level.median for level in effect.levels] == [9.5, 29.5, 49.5, 69.5, 89.5]


def test_equal_numbers_stay_in_one_group() -> None:
    values = (*range(8), 99)
    points = [Observed({"x": 99, "y": index}, 1.0) for index in range(50)]
    points += [Observed({"x": value, "y": 0}, 2.0) for value in range(8)]
    effect = next(item for item in main_effects({"x": values, "y": (0,)}, points) if item.axis == "x")
    assert effect.levels[-1].values == (99,)
    assert len(effect.levels[-1].observed) == 50


def test_true_is_not_one_and_a_list_is_a_value() -> None:
    axes: dict[str, tuple[JsonValue, ...]] = {"x": (True, 1, [1, 2])}
    (effect,) = main_effects(axes, [Observed({"x": value}, float(index)) for index, value in enumerate(axes["x"])])
    assert [level.values for level in effect.levels] == [(True,), (1,), ([1, 2],)]


@pytest.mark.parametrize("points", [[], [Observed({"threads": 1, "level": "all"}, 3.0)]])
def test_few_points_show_no_effect(points: list[Observed]) -> None:
    assert main_effects(AXES, points) == ()


@given(
    costs=st.lists(st.floats(0.1, 10), min_size=6, max_size=6),
    factors=st.lists(st.floats(0.5, 2), min_size=4, max_size=4),
    order=st.permutations(range(24)),
)
def test_multiplicative_effects_are_found_whatever_the_other_settings_cost(
    costs: Sequence[float], factors: Sequence[float], order: Sequence[int]
) -> None:
    axes: dict[str, tuple[JsonValue, ...]] = {"other": tuple(range(6)), "x": tuple("abcd")}
    points = observe(axes, lambda other, x: costs[other] * factors["abcd".index(x)])
    effects = main_effects(axes, [points[place] for place in order])
    effect = next(effect for effect in effects if effect.axis == "x")
    assert effect.paired
    ratios = [level.median / effect.levels[0].median for level in effect.levels]
    assert ratios == pytest.approx([factor / factors[0] for factor in factors])
