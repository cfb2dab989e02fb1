"""Rounds as evidence: the deciding clock, verdicts from rounds, and the error rate of the rule."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ndld_flow.base.quantities import MINUS
from ndld_flow.profiles.compare.comparison import RoundsEvidence, compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.profiles.compare.rounds import RoundsPlan, choose_clock, describe_rounds, spread_of
from ndld_flow.records.comparison import Comparison, MetricVerdict
from ndld_flow.records.measurement import FEWEST_ROUNDS
from ndld_flow.records.noise import PairedRounds, Round, RoundSide
from tests.support.compare_samples import steady
from tests.support.simulated_rounds import A_A, SCENARIOS, decide
from tests.support.text_facts import numbers_in

CYCLES = 28
PLAN = RoundsPlan(on_device=False, rounds_limit=12, budget_ms=60_000, threshold=0.03)


def side(wall_ms: float, *, cpu_ms: float | None = None, queued_ms: float | None = 0.0, threads: int = 1) -> RoundSide:
    """Turns that all take the same time, but for a scatter of half a percent."""
    scatter = [1 + 0.005 * math.sin(turn) for turn in range(CYCLES)]
    cpu = wall_ms if cpu_ms is None else cpu_ms
    return RoundSide(
        passes=1,
        threads=threads,
        wall_ms=tuple(wall_ms * item for item in scatter),
        cpu_ms=tuple(cpu * item for item in scatter),
        queued_ms=() if queued_ms is None else (queued_ms,) * CYCLES,
    )


def rounds_of(base: RoundSide, candidate: RoundSide, number: int = FEWEST_ROUNDS) -> list[Round]:
    return [Round(base=base, candidate=candidate)] * number


def compare_by(rounds: Sequence[Round], *gates: str, **plan: Any) -> Comparison:
    """A comparison whose process runs show nothing, and whose rounds are these."""
    paired_rounds = describe_rounds(rounds, RoundsPlan(**{**vars(PLAN), **plan}), "decided")
    runs = [Measured(index, name, steady(*[10.0] * 5)) for index, name in enumerate(("base", "speed"))]
    return compare((), {"speed": runs}, Rules(metric="latency.median"), gates, evidence=RoundsEvidence(paired_rounds))


def rounds_in(comparison: Comparison) -> PairedRounds:
    rounds = comparison.profiles[0].rounds
    assert rounds is not None
    return rounds


def verdict_in(comparison: Comparison, metric: str = "latency.median", base: int = 0) -> MetricVerdict:
    verdicts = comparison.profiles[0].verdicts
    return next(verdict for verdict in verdicts if (verdict.metric, verdict.base) == (metric, base))


@pytest.mark.parametrize(
    ("candidate", "clock", "reason"),
    [
        (side(10), "cpu", "thread that never waits"),
        (
            side(20, cpu_ms=10, queued_ms=10),
            "cpu",
            "thread that never waits",
        ),  # others had the CPU half of the time
        (side(10, cpu_ms=18, threads=2), "wall", "2 threads"),
        (side(10, cpu_ms=18), "wall", "several threads"),  # threads that nobody counted
        (side(20, cpu_ms=10, queued_ms=0), "wall", "50% of a pass"),
        (side(10, cpu_ms=9, queued_ms=None), "wall", "10% of a pass"),
        (side(10, cpu_ms=9.9, queued_ms=None), "cpu", "thread that never waits"),
    ],
)
def test_cpu_time_decides_only_where_it_covers_all_work(candidate: RoundSide, clock: str, reason: str) -> None:
    chosen, why = choose_clock(rounds_of(side(10), candidate), on_device=False)
    assert chosen == clock
    assert reason in why


def test_wall_time_decides_on_devices() -> None:
    assert choose_clock(rounds_of(side(10), side(10)), on_device=True)[0] == "wall"


def test_rounds_decide_the_median_and_the_minimum_and_both_clocks_are_recorded() -> None:
    comparison = compare_by(rounds_of(side(10), side(11)), "latency.median <= +5 %", "latency.min <= +15 %")
    assert [gate.outcome for gate in comparison.gates] == ["failed", "passed"]
    assert comparison.verdict == "regressed"
    assert verdict_in(comparison).ratio == pytest.approx(1.1)
    assert rounds_in(comparison).wall.ratio == rounds_in(comparison).cpu.ratio == pytest.approx(1.1)
    assert verdict_in(comparison, "throughput").verdict == "regressed"
    assert verdict_in(comparison, "throughput").ratio == pytest.approx(1 / 1.1)
    assert verdict_in(comparison, "latency.mean").clock == ""
    assert verdict_in(comparison, "latency.mean").verdict == "unchanged"
    back = verdict_in(comparison, base=1)
    assert back.verdict == "improved"
    assert back.ratio == pytest.approx(1 / 1.1)


def test_a_difference_that_only_wall_time_sees_is_never_called_unchanged() -> None:
    """Waits that look like queueing, or too short to count as waiting, hide from CPU time."""
    comparison = compare_by(rounds_of(side(10), side(12, cpu_ms=10, queued_ms=2)), "latency.median <= +5 %")
    assert rounds_in(comparison).clocks_disagree
    assert verdict_in(comparison).verdict == "inconclusive"
    assert "the clocks disagree" in comparison.why
    assert comparison.gates[0].outcome == "inconclusive"
    # Where both see a difference, only its size is uncertain.
    both = verdict_in(compare_by(rounds_of(side(10), side(14, cpu_ms=11, queued_ms=3))))
    assert (both.verdict, both.clock) == ("regressed", "cpu")
    assert both.low < 1.1
    assert both.high > 1.4


def queued(wall_ms: float, cpu_ms: float) -> RoundSide:
    return side(wall_ms, cpu_ms=cpu_ms, queued_ms=wall_ms - cpu_ms)


@pytest.mark.parametrize(
    ("wall_ratio", "cpu_ratio", "disagree"),
    [
        (1.10, 1.0, True),
        (0.90, 1.0, True),
        (1.02, 0.8, False),  # within the threshold
        (0.98, 1.2, False),
        (1.10, 1.1, False),  # CPU time shows it too
        (0.90, 0.9, False),
    ],
)
def test_clocks_disagree_about_differences_that_only_wall_time_shows(
    wall_ratio: float, cpu_ratio: float, disagree: bool
) -> None:
    rounds = describe_rounds(rounds_of(queued(20, 10), queued(20 * wall_ratio, 10 * cpu_ratio)), PLAN, "decided")
    assert rounds.clock == "cpu"
    assert rounds.clocks_disagree is disagree


def test_turns_without_their_time_in_the_queue_are_refused() -> None:
    whole = queued(20, 10)
    with pytest.raises(ValueError, match="zip"):
        choose_clock(rounds_of(whole, whole.model_copy(update={"queued_ms": whole.queued_ms[1:]})), on_device=False)


@pytest.mark.parametrize(
    ("candidate", "clocks", "numbers"),
    [
        (side(11), ["CPU", "wall"], [10.0, 11.0, 10, 8.6, 11, 10, 8.6, 11]),
        (side(11, cpu_ms=12, threads=2), ["wall", "CPU"], [10.0, 11.0, 10, 8.6, 11, 20, 18, 22]),
        (
            side(12, cpu_ms=10, queued_ms=2),
            ["CPU", "wall", "disagree"],
            [10.0, 10.0, 0, 1.3, 22, 3, 20, 18, 22],
        ),
    ],
)
def test_the_reason_names_the_deciding_clock_and_shows_the_other(
    candidate: RoundSide, clocks: list[str], numbers: list[float]
) -> None:
    why = verdict_in(compare_by(rounds_of(side(10), candidate))).why
    assert re.findall("CPU|wall|disagree", why) == clocks
    assert numbers_in(why.replace(MINUS, " ")) == numbers
    assert why.endswith("; alternating passes, decided")


@pytest.mark.parametrize("metric", ["latency.median", "latency.min", "throughput"])
@pytest.mark.parametrize("clocks", ["agree", "disagree"])
def test_swapping_the_sides_inverts_values_and_interval(metric: str, clocks: str) -> None:
    candidate = side(11) if clocks == "agree" else side(12, cpu_ms=10, queued_ms=2)
    comparison = compare_by(rounds_of(side(10), candidate))
    there, back = (verdict_in(comparison, metric, base) for base in (0, 1))
    assert (back.base_value, back.candidate_value) == pytest.approx((there.candidate_value, there.base_value))
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / there.ratio, 1 / there.high, 1 / there.low))
    assert there.candidate_value == pytest.approx((there.base_value or 0) * there.ratio)
    expected = {"latency.median": 10.0035, "latency.min": 9.95, "throughput": 1e3 / 10.0035}[metric]
    assert there.base_value == pytest.approx(expected, rel=1e-4)


def test_intervals_of_too_few_rounds_invert_without_bounds() -> None:
    comparison = compare_by(rounds_of(side(10), side(11), FEWEST_ROUNDS - 1))
    assert [(item.low, item.high) for item in (verdict_in(comparison), verdict_in(comparison, base=1))] == [
        (0, math.inf)
    ] * 2


def test_a_difference_that_only_wall_time_sees_counts_beyond_the_threshold() -> None:
    for queued, disagree in (((0.0, 0.3), False), ((0.0, 0.6), True), ((0.3, 0.0), False), ((0.6, 0.0), True)):
        base, candidate = (side(10 + waits, cpu_ms=10, queued_ms=waits) for waits in queued)
        assert rounds_in(compare_by(rounds_of(base, candidate, 12))).clocks_disagree is disagree, queued


def test_noise_in_wall_time_alone_changes_nothing() -> None:
    rng = random.Random(1)
    noisy = [
        Round(base=_delayed(rng), candidate=_delayed(rng), pinned_to=number % 2) for number in range(FEWEST_ROUNDS)
    ]
    comparison = compare_by(noisy)
    assert not rounds_in(comparison).clocks_disagree
    assert comparison.verdict == "unchanged"


def _delayed(rng: random.Random) -> RoundSide:
    delays = [rng.choice((0.0, 0.0, 5.0, 12.0)) for _ in range(CYCLES)]
    cpu = [10 * rng.lognormvariate(0, 0.01) for _ in range(CYCLES)]
    wall = [ms + delay for ms, delay in zip(cpu, delays, strict=True)]
    return RoundSide(passes=1, threads=1, wall_ms=tuple(wall), cpu_ms=tuple(cpu), queued_ms=tuple(delays))


def test_fewer_than_four_rounds_are_inconclusive() -> None:
    comparison = compare_by(rounds_of(side(10), side(20), FEWEST_ROUNDS - 1))
    assert comparison.verdict == "inconclusive"
    assert compare_by(rounds_of(side(10), side(20))).verdict == "regressed"


def test_contradictory_rounds_are_inconclusive() -> None:
    slow, fast = Round(base=side(10), candidate=side(12)), Round(base=side(12), candidate=side(10))
    assert compare_by([slow, fast] * 3).verdict == "inconclusive"


def test_a_learned_spread_widens_the_interval() -> None:
    rounds = rounds_of(side(10), side(10.6))
    assert compare_by(rounds).verdict == "regressed"
    assert compare_by(rounds, floor=0.04).verdict == "inconclusive"


def test_the_learned_spread_bounds_that_of_the_rounds() -> None:
    rng = random.Random(3)
    rounds = [Round(base=side(10), candidate=side(10 * rng.lognormvariate(0, 0.01))) for _ in range(12)]
    assert 0.01 < spread_of(describe_rounds(rounds, PLAN, "")) < 0.03


def test_different_circumstances_prevent_a_verdict_by_rounds_too() -> None:
    rounds = describe_rounds(rounds_of(side(10), side(11)), PLAN, "decided")
    other = steady(*[10.0] * 5, versions={"onnxruntime": "1.30"})
    runs = [Measured(0, "base", steady(*[10.0] * 5)), Measured(1, "speed", other)]
    assert compare((), {"speed": runs}, Rules(), evidence=RoundsEvidence(rounds)).verdict == "incomparable"


def test_an_empty_cpu_clock_is_not_used() -> None:
    comparison = compare_by(rounds_of(side(10, cpu_ms=0, queued_ms=10), side(20, cpu_ms=0, queued_ms=20)))
    assert comparison.verdict == "inconclusive"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (index % 3 > 0)) for index, name in enumerate(SCENARIOS)],
)
def test_the_rule_is_rarely_wrong_whatever_the_noise(name: str) -> None:
    """A/A comparisons with a fixed seed: noise may leave them undecided, and rarely makes a difference of them."""
    rng = random.Random(f"A/A {name}")
    counts = Counter(decide(rng, SCENARIOS[name], A_A) for _ in range(40))
    assert counts["regressed"] + counts["improved"] <= SCENARIOS[name].allowed_percent, counts
