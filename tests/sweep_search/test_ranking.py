"""The best points, ties with the best, the Pareto front, and points that are measured again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.sweep_search.ranking import Contender, Goal, choose_winners, find_best, rank_points

LESS = (Goal("minimize"),)
NOISY = (Goal("minimize", 0.03),)
MORE = (Goal("maximize"),)
BOTH = (Goal("minimize"), Goal("maximize"))


def contenders(*values: float | None) -> list[Contender]:
    return [Contender(number, True, (value,)) for number, value in enumerate(values, 1)]


def ranked(points: list[Contender], goals: tuple[Goal, ...]) -> list[int]:
    places = rank_points(points, goals)
    return sorted((n for n, place in places.items() if place.rank), key=lambda n: places[n].rank or 0)


@pytest.mark.parametrize(("goals", "order"), [(LESS, [2, 3, 1]), (MORE, [1, 3, 2])])
def test_the_best_value_comes_first(goals: tuple[Goal, ...], order: list[int]) -> None:
    assert ranked(contenders(3.0, 1.0, 2.0), goals) == order


def test_only_points_that_passed_and_have_all_objectives_are_ranked() -> None:
    points = [*contenders(None, 2.0, float("nan")), Contender(4, False, (1.0,)), Contender(5, True, ())]
    assert ranked(points, LESS) == [2]
    assert find_best(rank_points(points, LESS)) == 2


def test_without_objectives_nothing_is_ranked() -> None:
    points = [Contender(1, True, ())]
    assert ranked(points, ()) == []
    assert find_best(rank_points(points, ())) is None
    assert choose_winners(points, (), 3) == []


def test_equal_points_are_tied_and_ordered_by_number() -> None:
    places = rank_points(contenders(2.0, 1.0, 1.0)[::-1], LESS)
    assert [places[number].rank for number in (1, 2, 3)] == [3, 1, 2]
    assert [places[number].tied for number in (1, 2, 3)] == [False, False, True]


def test_points_within_the_noise_of_the_best_are_tied() -> None:
    places = rank_points(contenders(100.0, 102.9, 103.1), NOISY)
    assert [places[number].tied for number in (1, 2, 3)] == [False, True, False]
    places = rank_points(contenders(100.0, 97.2, 96.8), (Goal("maximize", 0.03),))
    assert [places[number].tied for number in (1, 2, 3)] == [False, True, False]


def test_values_of_different_sign_are_never_tied() -> None:
    places = rank_points(contenders(-1.0, 1.0, 0.0), (Goal("minimize", 1e9),))
    assert not any(place.tied for place in places.values())


def test_points_measured_again_come_before_others() -> None:
    first, second, third = contenders(1.0, 1.1, 1.2)
    points = [replace(first, again=(1.5,)), replace(second, again=(1.3,)), third]
    assert ranked(points, LESS) == [2, 1, 3]


def test_a_point_whose_second_measurement_failed_counts_as_first_measured() -> None:
    first, second = contenders(1.0, 1.1)
    assert ranked([replace(first, again=(None,)), replace(second, again=(1.3,))], LESS) == [2, 1]


def test_the_verdict_decides_which_winners_are_tied() -> None:
    first, second, third = (replace(point, again=point.objectives) for point in contenders(100.0, 101.0, 110.0))
    points = [replace(first, verdict="best"), replace(second, verdict="worse"), replace(third, verdict="tie")]
    assert [rank_points(points, NOISY)[number].tied for number in (1, 2, 3)] == [False, False, True]


def test_points_that_tie_in_one_goal_are_not_tied_if_another_differs() -> None:
    points = [
        Contender(1, True, (1.0, 5.0), again=(1.0, 5.0), verdict="best"),
        Contender(2, True, (1.01, 5.0), again=(1.01, 5.0), verdict="tie"),
        Contender(3, True, (1.01, 9.0), again=(1.01, 9.0), verdict="tie"),
    ]
    assert [rank_points(points, BOTH)[number].tied for number in (1, 2, 3)] == [False, True, False]


def test_the_front_comes_first_and_its_best_in_the_first_goal_leads() -> None:
    values = [(2.0, 9.0), (1.0, 5.0), (1.5, 4.0), (3.0, 10.0), (3.0, 9.0)]
    points = [Contender(number, True, value) for number, value in enumerate(values, 1)]
    assert ranked(points, BOTH) == [2, 1, 4, 3, 5]
    assert {n for n, place in rank_points(points, BOTH).items() if place.on_front} == {1, 2, 4}


def test_a_point_that_was_not_measured_again_does_not_push_one_that_was_off_the_front() -> None:
    points = [
        Contender(1, True, (1.0, 5.0), again=(2.0, 5.0)),
        Contender(2, True, (1.5, 5.0)),
        Contender(3, True, (9.0, 7.0)),
    ]
    assert {n for n, place in rank_points(points, BOTH).items() if place.on_front} == {1, 3}


def test_a_point_beaten_in_its_second_measurement_is_off_the_front() -> None:
    points = [
        Contender(1, True, (1.0, 5.0), again=(2.0, 5.0)),
        Contender(2, True, (1.5, 6.0), again=(1.5, 6.0)),
    ]
    assert {n for n, place in rank_points(points, BOTH).items() if place.on_front} == {2}


def test_one_goal_has_no_front() -> None:
    assert not any(place.on_front for place in rank_points(contenders(1.0, 2.0), LESS).values())


def test_winners_are_the_best_and_those_within_its_noise() -> None:
    points = contenders(100.0, 120.0, 102.0, 101.0, 110.0, 102.5)
    assert choose_winners(points, NOISY, 1) == [1, 4]
    assert choose_winners(points, NOISY, 2) == [1, 4, 3, 6]
    assert choose_winners(points, NOISY, 5) == [1, 4, 3, 6, 5]
    assert choose_winners(points, NOISY, 9) == [1, 4, 3, 6, 5, 2]
    assert choose_winners(points, NOISY, 0) == []


def test_with_several_goals_the_front_and_the_next_best_are_measured_again() -> None:
    points = [Contender(n, True, (float(n), float(n))) for n in range(1, 4)] + [Contender(4, True, (2.0, 1.0))]
    assert choose_winners(points, BOTH, 2) == [1, 2, 3]
    assert choose_winners(points, BOTH, 4) == [1, 2, 3, 4]


def test_a_long_front_is_thinned_evenly() -> None:
    points = [Contender(n, True, (float(n), float(n))) for n in range(1, 101)]
    assert choose_winners(points, BOTH, 2) == [1, 34, 67, 100]
    assert choose_winners(points, BOTH, 0) == []


VALUE = st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(allow_infinity=True))


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[list[Contender], tuple[Goal, ...]]:
    count = draw(st.integers(0, 3))
    goals = tuple(
        draw(st.builds(Goal, st.sampled_from(["minimize", "maximize"]), st.floats(0, 0.5))) for _ in range(count)
    )
    values = st.tuples(*[VALUE] * count)
    points = draw(
        st.lists(
            st.tuples(st.booleans(), values, st.none() | values, st.sampled_from([None, "best", "tie", "worse"])),
            max_size=12,
        )
    )
    return [Contender(number, *point) for number, point in enumerate(points, 1)], goals


@given(sweeps(), st.randoms(use_true_random=False))
def test_the_order_of_points_changes_nothing(
    sweep: tuple[list[Contender], tuple[Goal, ...]], shuffling: random.Random
) -> None:
    points, goals = sweep
    other = points.copy()
    shuffling.shuffle(other)
    assert rank_points(points, goals) == rank_points(other, goals)
    assert choose_winners(points, goals, 2) == choose_winners(other, goals, 2)


@given(sweeps())
def test_ranks_are_one_to_the_last_and_the_best_is_not_tied(sweep: tuple[list[Contender], tuple[Goal, ...]]) -> None:
    points, goals = sweep
    places = rank_points(points, goals)
    ranks = sorted(place.rank for place in places.values() if place.rank)
    assert ranks == list(range(1, len(ranks) + 1))
    best = find_best(places)
    assert (best is None) == (not ranks)
    if best is not None:
        assert not places[best].tied
        assert places[best].on_front == (len(goals) > 1)
    assert all(place.rank for place in places.values() if place.tied or place.on_front)


@given(sweeps())
def test_the_front_consists_of_undominated_points(sweep: tuple[list[Contender], tuple[Goal, ...]]) -> None:
    points, goals = sweep
    points = [replace(point, again=None) for point in points]
    places = rank_points(points, goals)
    rankable = [point for point in points if places[point.number].rank]

    def beats(contender: Contender, other: Contender) -> bool:
        better = [
            (a < b) - (a > b) if goal.direction == "minimize" else (a > b) - (a < b)
            for goal, a, b in zip(goals, contender.objectives, other.objectives, strict=True)
            if a is not None and b is not None
        ]
        return min(better) >= 0 and max(better) > 0

    for point in rankable if len(goals) > 1 else []:
        assert places[point.number].on_front == (not any(beats(other, point) for other in rankable))


@given(sweeps(), st.integers(0, 4))
def test_winners_are_at_most_twice_the_requested_count(
    sweep: tuple[list[Contender], tuple[Goal, ...]], count: int
) -> None:
    points, goals = sweep
    points = [replace(point, again=None) for point in points]  # winners are chosen before any is measured again
    places = rank_points(points, goals)
    chosen = choose_winners(points, goals, count)
    ranks = [places[number].rank or 0 for number in chosen]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(ranks) and all(ranks)
    assert min(count, sum(place.rank is not None for place in places.values())) <= len(chosen) <= 2 * count
    if chosen:
        assert find_best(places) == chosen[0]
