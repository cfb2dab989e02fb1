"""Steps of series: what is one, and everything that only looks like one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ndld_flow.history.steps import StepRules, find_steps
from tests.support.representatives import thorough_except
from tests.support.simulated_series import NOISE, Noise, simulate

LENGTH = 600
PLANTED = 60


def step_of(latencies: Sequence[float], ratio: float, at: int) -> list[float]:
    return [value * (ratio if index >= at else 1.0) for index, value in enumerate(latencies)]


def places(values: Sequence[float]) -> list[int]:
    return [step.place for step in find_steps(values)]


@pytest.mark.parametrize("ratio", [1.05, 0.95])
def test_a_step_is_found_within_five_points(ratio: float) -> None:
    found = 0
    for seed in range(20):
        steps = find_steps(step_of(simulate("normal 1 %", PLANTED + 5, seed), ratio, PLANTED))
        found += [abs(step.place - PLANTED) <= 5 for step in steps] == [True]
    assert found >= 18


def test_a_step_has_its_size_and_an_interval_that_shrinks() -> None:
    values = step_of(simulate("normal 1 %", 200, 3), 1.05, PLANTED)
    early, late = (find_steps(values[:end])[0] for end in (PLANTED + 5, 200))
    for step in (early, late):
        assert step.low < 1.05 < step.high
        assert step.ratio == pytest.approx(1.05, abs=0.02)
    assert late.high - late.low < early.high - early.low
    assert late.earliest <= PLANTED <= late.latest


def test_a_step_that_was_found_is_never_withdrawn() -> None:
    values = step_of(simulate("normal 2 %", 110, 11), 1.08, 80)
    seen: list[int] = []
    for end in range(60, len(values) + 1):
        found = [step.found_at for step in find_steps(values[:end])]
        assert found[: len(seen)] == seen
        seen = found
    assert len(seen) == 1


@pytest.mark.representatives("drift", "two modes")
@pytest.mark.parametrize(
    "noise",
    thorough_except(
        (noise for noise in NOISE if noise != "sticky modes"),
        "normal 1 %",
        "heavy tails",
        "two modes",
        "AR(1) 0.8",
        "drift",
    ),
)
def test_noise_and_drift_are_no_steps(noise: Noise) -> None:
    """At most one false alarm of the 1,200 points of each kind."""
    alarms = sum(len(find_steps(simulate(noise, LENGTH, seed))) for seed in (1, 2))
    assert alarms <= 1


def test_one_outlier_is_no_step_and_hides_none() -> None:
    values = simulate("normal 1 %", 70, 2)
    values[30] *= 3.0
    assert places(values) == []
    assert places(step_of(values, 1.08, PLANTED)) == [PLANTED]


def test_a_burst_of_three_is_no_step() -> None:
    values = simulate("normal 1 %", 100, 4)
    for value in (50, 51, 52):
        values[value] *= 1.3
    assert places(values) == []


def test_a_step_near_an_end_waits_for_evidence() -> None:
    values = simulate("normal 1 %", 60, 8)
    assert places(step_of(values, 1.2, 58)) == [], "two points after it"
    assert places(step_of(values, 1.2, 3)) == [], "three points before it"
    assert places(step_of(values, 1.2, 54)) == [54]
    assert places(step_of(values, 1.2, 10)) == [10]


@pytest.mark.representatives("values5", "values4")
@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0] * 11, [3.0] * 500, [0.0] * 50])
def test_few_and_constant_points_have_no_step(values: list[float]) -> None:
    assert find_steps(values) == []


def test_a_constant_series_with_one_other_value_has_no_step() -> None:
    assert places([5.0] * 30 + [6.0] + [5.0] * 30) == []
    assert places([5.0] * 30 + [6.0] * 30) == [30]


def test_zeros_and_negative_values_are_compared_by_their_difference() -> None:
    rng = random.Random(3)
    values = [rng.gauss(-10.0 if index < 50 else 10.0, 1.0) for index in range(100)]
    (step,) = find_steps(values)
    assert (step.place, step.ratio) == (50, None)
    assert step.low < 20.0 < step.high


def test_a_change_below_the_learned_noise_is_no_step() -> None:
    values = step_of(simulate("normal 1 %", 300, 1), 1.04, 100)
    assert places(values) == [100]
    assert find_steps(values, StepRules(least_change=0.06)) == []


def test_every_change_of_an_exact_metric_is_a_step() -> None:
    steps = find_steps([120.0, 120.0, 118.0, 120.0], StepRules(exact=True))
    assert [(step.place, step.before, step.after) for step in steps] == [(2, 120.0, 118.0), (3, 118.0, 120.0)]
    assert find_steps([0.1 + 0.2, 0.3], StepRules(exact=True)) == [], "rounding"


def test_two_steps_are_two() -> None:
    values = step_of(step_of(simulate("normal 1 %", 90, 6), 1.06, 30), 1.06, 60)
    found = find_steps(values)
    assert [abs(step.place - at) <= 2 for step, at in zip(found, (30, 60), strict=True)] == [True, True]


def test_a_slow_change_is_drift_even_if_it_ends() -> None:
    ramp = [math.exp(0.002 * min(max(index - 60, 0), 50)) for index in range(200)]
    values = [a * b for a, b in zip(simulate("normal 0.5 %", 200, 9), ramp, strict=True)]
    assert len(find_steps(values)) <= 1, "its start may look like a step, the rest must not"
