"""Decisions at their exact boundaries: ratios, exact metrics, intervals, clocks, rounds."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from ndld_flow.base.declared_metrics import Better
from ndld_flow.base.quantities import MINUS, ratio_change, speedup_interval, times_as_fast
from ndld_flow.profiles.compare import verdicts
from ndld_flow.profiles.compare.intervals import RatioInterval, median_interval, paired_ratio, unpaired_ratio
from ndld_flow.profiles.compare.rounds import (
    Estimate,
    RoundsPlan,
    choose_clock,
    describe_interval,
    describe_rounds,
    estimate_median,
    interval_of,
    spread_of,
)
from ndld_flow.profiles.compare.verdicts import decide_ratio, geometric_mean
from ndld_flow.records.comparison import Verdict
from ndld_flow.records.noise import Round, RoundSide
from tests.support.message_files import CheckMessage

JUST_BELOW, JUST_ABOVE = math.nextafter(1.25, 0), math.nextafter(1.25, 2)
"""Of a threshold of 25 %: 1.25 and its inverse 0.8 are exact."""


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (0.8, 1.25, "lower", "unchanged"),
        (0.8, JUST_ABOVE, "lower", "inconclusive"),
        (math.nextafter(0.8, 0), 1.25, "lower", "inconclusive"),
        (1.25, 1.5, "lower", "inconclusive"),
        (JUST_ABOVE, 1.5, "lower", "regressed"),
        (JUST_ABOVE, 1.5, "higher", "improved"),
        (JUST_ABOVE, 1.5, "neither", "inconclusive"),
        (0.5, 0.8, "lower", "inconclusive"),
        (0.5, math.nextafter(0.8, 0), "lower", "improved"),
        (0.5, math.nextafter(0.8, 0), "higher", "regressed"),
        (0.9, 1.1, "neither", "unchanged"),
        (0.5, 1.5, "higher", "inconclusive"),
    ],
)
def test_a_ratio_is_decided_by_its_whole_interval(low: float, high: float, better: Better, verdict: Verdict) -> None:
    assert decide_ratio(RatioInterval((low * high) ** 0.5, low, high), 0.25, better) == verdict


@pytest.mark.parametrize(
    ("before", "after", "better", "verdict"),
    [
        (100.0, 100.0, "lower", "unchanged"),
        (100.0, 100.0 + 1e-8, "lower", "unchanged"),
        (100.0, 100.001, "lower", "regressed"),
        (100.0, 99.999, "lower", "improved"),
        (100.0, 100.001, "higher", "improved"),
        (100.0, 99.999, "higher", "regressed"),
        (100.0, 101.0, "neither", "inconclusive"),
        (0.0, 0.0, "lower", "unchanged"),
        (0.0, 1.0, "lower", "regressed"),
    ],
)
def test_every_difference_of_an_exact_metric_counts(
    before: float, after: float, better: Better, verdict: Verdict
) -> None:
    assert verdicts._decide_exact(before, after, better) == verdict


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.042, "+4.2 %"),
        (0.5, "-50 %"),
        (1.0, "±0 %"),
        (1.000499, "±0 %"),
        (1.000501, "+0.1 %"),
        (1.09949, "+9.9 %"),
        (1.0996, "+10 %"),
        (0.98, "-2.0 %"),
        (21.0, "+2,000 %"),
        (math.inf, "from nothing"),
    ],
)
def test_changes_are_written_with_their_significant_digits(ratio: float, text: str) -> None:
    assert ratio_change(ratio).replace(MINUS, "-") == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.2, "5.00x"), (1.25, "0.80x"), (0.996, "1.004x"), (1, "1.000x"), (0.05, "20.0x"), (20, "0.05x"), (0, "infx")],
)
def test_speedups_are_written_as_times_of_the_base_by_those_of_the_candidate(ratio: float, text: str) -> None:
    assert times_as_fast(ratio) == text


def test_the_ends_of_an_interval_of_times_are_swapped_in_that_of_speedups() -> None:
    assert speedup_interval(0.8, 1.25) == "0.80x to 1.25x"
    assert speedup_interval(0.5, 0.5001) == "2.00x"


def test_a_geometric_mean_needs_two_positive_finite_ratios() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    for ratios in ([2.0], [], [2.0, 0.0], [2.0, math.inf], [2.0, -1.0]):
        assert geometric_mean(ratios) is None


def test_intervals_of_medians_match_published_tables(check_message: CheckMessage) -> None:
    """By the sign test: 6 values cover 96.9 %, and 9 cover 96.1 % from the second to the eighth."""
    six, nine = list(range(1, 7)), list(range(1, 10))
    assert median_interval(six, 1 - 2 / 2**6) == (1, 6)
    assert median_interval(nine, 1 - 20 / 2**9) == (2, 8)
    assert median_interval([5.0]) == (5.0, 5.0)
    low, high = median_interval(nine)
    assert 2 < low < 3 and 7 < high < 8
    assert low + high == pytest.approx(10)
    with pytest.raises(ValueError) as caught:
        median_interval([])
    check_message(caught.value)


def test_ratios_of_pairs_follow_the_pairs_and_others_the_medians() -> None:
    base, candidate = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    paired = paired_ratio(base, candidate)
    assert (paired.ratio, paired.low, paired.high) == pytest.approx((2.0, 2.0, 2.0))
    loose = unpaired_ratio(base, candidate)
    assert loose.ratio == pytest.approx(2.0)
    assert loose.low < 1
    assert loose.high > 4
    assert loose.low * loose.high == pytest.approx(4.0)
    assert loose.inverted().ratio == pytest.approx(0.5)
    assert (loose.inverted().low, loose.inverted().high) == (1 / loose.high, 1 / loose.low)
    single = unpaired_ratio([3.0], [6.0])
    assert (single.ratio, single.low, single.high) == pytest.approx((2.0, 2.0, 2.0))


def estimates(*logs: float, error: float = 0.0) -> list[Estimate]:
    return [Estimate(log, error) for log in logs]


def test_an_interval_of_rounds_is_2_6_standard_errors_wide() -> None:
    logs = (0.0, 0.2, 0.1, 0.3)
    interval = interval_of(estimates(*logs))
    half = 2.6 * statistics.stdev(logs) / 2
    assert math.log(interval.ratio) == pytest.approx(0.15)
    assert (math.log(interval.low), math.log(interval.high)) == pytest.approx((0.15 - half, 0.15 + half))


def test_rounds_that_agree_by_chance_are_as_wide_as_the_floor_and_their_own_errors() -> None:
    interval = interval_of(estimates(0.1, 0.1, 0.1, 0.1, error=0.03), floor=0.04)
    assert math.log(interval.high) == pytest.approx(0.1 + 2.6 * 0.05 / 2)
    assert math.log(interval.low) == pytest.approx(0.1 - 2.6 * 0.05 / 2)


def test_three_rounds_are_inconclusive() -> None:
    interval = interval_of(estimates(0.1, 0.1, 0.1))
    assert (interval.low, interval.high) == (0.0, math.inf)
    assert interval.ratio == pytest.approx(math.exp(0.1))
    assert "too few rounds" in describe_interval(interval)
    assert "too few rounds" not in describe_interval(interval_of(estimates(0.1, 0.1, 0.1, 0.1)))


def side(
    wall_ms: list[float], cpu_ms: list[float], queued_ms: list[float] | None = None, threads: int = 1
) -> RoundSide:
    queued = tuple(queued_ms) if queued_ms is not None else ()
    return RoundSide(passes=1, threads=threads, wall_ms=tuple(wall_ms), cpu_ms=tuple(cpu_ms), queued_ms=queued)


STEADY = side([10.0] * 4, [10.0] * 4)


@pytest.mark.parametrize(
    ("candidate", "clock"),
    [
        (side([10.0] * 4, [10.5] * 4), "cpu"),  # 5 % more CPU time than wall time may be the clock's
        (side([10.0] * 4, [10.6] * 4), "wall"),
        (side([100.0] * 4, [50.0] * 4, [47.5] * 4), "cpu"),  # 2.5 % waiting
        (side([100.0] * 4, [50.0] * 4, [46.5] * 4), "wall"),
        (side([100.0, 200.0], [97.5, 97.5]), "cpu"),  # without queues, the fastest pass is the least disturbed
        (side([100.0, 200.0], [96.5, 97.5]), "wall"),
        (side([0.0] * 4, [0.0] * 4), "wall"),
    ],
)
def test_the_clock_is_chosen_at_exact_shares(candidate: RoundSide, clock: str) -> None:
    for item in (Round(base=STEADY, candidate=candidate), Round(base=candidate, candidate=STEADY)):
        assert choose_clock([Round(base=STEADY, candidate=STEADY), item], on_device=False)[0] == clock


def test_a_round_is_the_median_of_its_cycles() -> None:
    base = side([1.0, 10.0, 100.0, 10.0, 10.0], [1.0] * 5)
    candidate = side([2.0, 20.0, 200.0, 80.0, 10.0], [3.0] * 5)
    estimate = estimate_median(Round(base=base, candidate=candidate), "wall")
    assert estimate.log_ratio == pytest.approx(math.log(2))
    assert estimate.error == 0.002
    assert estimate_median(Round(base=base, candidate=candidate), "cpu").log_ratio == pytest.approx(math.log(3))
    scattered = side([8.0, 9.0, 10.0, 11.0, 12.0], [1.0] * 5)
    logs = [math.log(value / 10) for value in scattered.wall_ms]
    error = estimate_median(Round(base=side([10.0] * 5, [1.0] * 5), candidate=scattered), "wall").error
    spread = statistics.median(abs(log - statistics.median(logs)) for log in logs)
    assert error == pytest.approx(1.2533 * 1.4826 * spread / math.sqrt(5))


def round_of(ratio: float) -> Round:
    return Round(base=STEADY, candidate=side([10 * ratio] * 4, [10 * ratio] * 4))


def test_the_bound_on_a_spread_follows_chi_square() -> None:
    """With 9 degrees of freedom the 5 % quantile is 3.325."""
    plan = RoundsPlan(on_device=False, rounds_limit=12, budget_ms=1.0, threshold=0.03)
    logs = [0.01 * (number % 2) for number in range(10)]
    rounds = describe_rounds([round_of(math.exp(log)) for log in logs], plan, "")
    assert spread_of(rounds) == pytest.approx(statistics.stdev(logs) * math.sqrt(9 / 3.325), rel=2e-3)


def draws_of(values: list[float]) -> list[float]:
    """Return the median of every draw with replacement; of an even number, each of the middle two once."""
    count = len(values)
    middle = ((count - 1) // 2, count // 2)
    drawn = (sorted(draw) for draw in itertools.product(values, repeat=count))
    return [draw[at] for draw in drawn for at in middle]


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        ([1.0, 2.0, 4.0], [1.0, 3.0, 9.0]),
        ([1.0, 2.0, 4.0, 16.0], [3.0, 5.0, 7.0]),
        ([1.0, 2.0], [1.0, 3.0, 9.0, 81.0]),
        ([2.0], [1.0, 3.0, 9.0]),
    ],
)
@pytest.mark.parametrize("confidence", [0.95, 0.8, 0.5])
def test_the_interval_of_a_ratio_matches_all_resamples(
    base: list[float], candidate: list[float], confidence: float
) -> None:
    ratios = sorted(ours / theirs for theirs in draws_of(base) for ours in draws_of(candidate))
    cut = (1 - confidence) / 2 * len(ratios)
    interval = unpaired_ratio(base, candidate, confidence)
    assert interval.low == pytest.approx(ratios[math.floor(cut + 1e-6)])
    assert interval.high == pytest.approx(ratios[-1 - math.floor(cut + 1e-6)])


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 12, 40])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_the_interval_of_a_median_is_symmetric_and_as_wide_as_the_confidence(count: int, confidence: float) -> None:
    """Between order statistics that cover less and more than the confidence."""
    values = [float(number) for number in range(1, count + 1)]
    low, high = median_interval(values, confidence)
    assert low + high == pytest.approx(count + 1)
    covers = [
        1 - 2 * sum(math.comb(count, heads) for heads in range(depth)) / 2**count for depth in range(1, count + 1)
    ]
    depth = max((at for at, covered in enumerate(covers, start=1) if covered >= confidence), default=1)
    assert depth <= low <= max(depth, min(depth + 1, (count + 1) / 2))


def test_paired_ratios_are_the_median_of_pairs_with_its_interval() -> None:
    base, candidate = [1.0, 10.0, 100.0, 1000.0, 2.0, 3.0], [1.1, 12.0, 130.0, 1400.0, 3.0, 4.8]
    interval = paired_ratio(base, candidate, 1 - 2 / 2**6)
    assert (interval.ratio, interval.low, interval.high) == pytest.approx(((1.3 * 1.4) ** 0.5, 1.1, 1.6))
    assert paired_ratio([10.0], [11.0]).ratio == pytest.approx(1.1)
