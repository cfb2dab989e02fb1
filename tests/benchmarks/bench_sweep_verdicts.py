"""Accuracy of a sweep's verdicts with known truth: printed, not asserted.

`python -m tests.benchmarks.bench_sweep_verdicts [trials]`, default 100 trials of each row: ten seconds, all simulated.

Every point has a true latency. A process run of it shows that, times noise of its own, times a drift of the machine
that all points of one turn share. Points are measured first in batches of eight; the winners are chosen, measured again
in turns and judged by the code that sweeps use. The noises are those that A/A runs of a shared machine showed (`quiet`:
a machine of one's own; `minimum`: the quickest pass of each run; `median`: the median of each run).

    best        the truly best, or one within 1 % of it, is named best
    told        it is named best, a tie, or `inconclusive`: the reader is not led astray
    worse       it is called worse than what is named best
    missed      it is not among those measured again
    tie/?/worse what is said of the others that are truly within 1 % of the named best
    covered     95 % intervals of the ratio to the named best that hold the true ratio
    first again what led at first over its truth, relative to all, at first and again (median): below 1 is luck
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ndld_flow.recipe.gates import parse_expression
from ndld_flow.records.measurement import Metric
from ndld_flow.records.profile import Profile, ProfileRun
from ndld_flow.sweep.winners import AgainstBest, Aim, WinnerValues, compare_winners
from ndld_flow.sweep_search.ranking import Contender, Goal, choose_winners, find_best, rank_points
from tests.support.run_fixtures import MACHINE

_GOALS = [Goal("minimize", 0.03)]
_AIM = Aim(parse_expression("speed.latency.min"), "minimize")
_NEAR = 1.01
_NOISES = {"quiet": (0.006, 0.01), "minimum": (0.03, 0.03), "median": (0.08, 0.10)}
"""Standard deviations, of logarithms: of a run, of a turn."""
_LANDSCAPES = {
    "all equal": [10.0] * 24,
    "one 10 % ahead": [10.0] + [11.0 + 0.3 * index for index in range(23)],
    "two equal ahead": [10.0, 10.0] + [12.0 + 0.3 * index for index in range(22)],
    "1 % apart": [10.0 * 1.01**index for index in range(24)],
}


@dataclass
class Counted:
    """Counts of outcomes over all trials."""

    best: int = 0
    worse: int = 0
    missed: int = 0
    near: Counter[str] = field(default_factory=Counter)
    covered: list[bool] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


def measure(truths: Sequence[float], runs: int, noise: tuple[float, float], rng: random.Random) -> list[WinnerValues]:
    """One session: all points in turns."""
    own, shared = noise
    result: list[list[ProfileRun]] = [[] for _ in truths]
    for _ in range(runs):
        drift = rng.gauss(0, shared)
        for index, truth in enumerate(truths):
            value = truth * math.exp(drift + rng.gauss(0, own))
            result[index].append(ProfileRun(latency_ms=(value,), load_ms=1.0))
    return [_finalist(tuple(item)) for item in result]


def _finalist(runs: tuple[ProfileRun, ...]) -> WinnerValues:
    profile = Profile(
        label="speed",
        model_digest="",
        backend="onnxruntime",
        providers=(),
        machine=MACHINE,
        versions={},
        options={},
        inputs=(),
        outputs=(),
        warmup_passes=1,
        warmup_ms=1.0,
        runs=runs,
        session="together",
    )
    return WinnerValues({"speed.latency.min": Metric(value=profile.latency.min_ms, unit="ms")}, {"speed": profile})


def try_once(
    truths: Sequence[float], runs: int, noise: tuple[float, float], rng: random.Random, so_far: Counted
) -> None:
    """One sweep of all points, its winners measured again."""
    order = rng.sample(range(len(truths)), len(truths))
    first: dict[int, float] = {}
    for begin in range(0, len(order), 8):
        batch = order[begin : begin + 8]
        for number, item in zip(batch, measure([truths[item] for item in batch], runs, noise, rng), strict=True):
            first[number] = item.metrics["speed.latency.min"].value
    chosen = choose_winners([Contender(number, True, (value,)) for number, value in first.items()], _GOALS, 3)
    finalists = dict(zip(chosen, measure([truths[item] for item in chosen], runs, noise, rng), strict=True))
    again = {number: finalist.metrics["speed.latency.min"].value for number, finalist in finalists.items()}
    points = [
        Contender(number, True, (value,), (again[number],) if number in again else None)
        for number, value in first.items()
    ]
    best = find_best(rank_points(points, _GOALS))
    assert best is not None
    _count(truths, best, compare_winners(finalists, best, _AIM), so_far)
    so_far.first.append(_luck(chosen[0], first, truths))
    so_far.again.append(_luck(chosen[0], again, truths))


def _luck(number: int, seen: dict[int, float], truths: Sequence[float]) -> float:
    """What a point showed over its truth, relative to what points usually show."""
    return seen[number] / truths[number] / statistics.median(value / truths[name] for name, value in seen.items())


def _count(truths: Sequence[float], best: int, stands: dict[int, AgainstBest], so_far: Counted) -> None:
    truly = {number for number, truth in enumerate(truths) if truth <= min(truths) * _NEAR}
    there = truly & stands.keys()
    so_far.best += best in truly
    so_far.worse += best not in truly and bool(there) and all(stands[item].verdict == "worse" for item in there)
    so_far.missed += best not in truly and not there
    for number, stand in stands.items():
        true_ratio = truths[number] / truths[best]
        if number != best and 1 / _NEAR <= true_ratio <= _NEAR:
            so_far.near[stand.verdict] += 1
        if number != best and stand.low is not None and stand.high is not None:
            so_far.covered.append(stand.low <= true_ratio <= stand.high)


def row(name: str, noise: str, runs: int, trials: int) -> str:
    counted = Counted()
    rng = random.Random(f"{name} {noise} {runs}")
    for _ in range(trials):
        try_once(_LANDSCAPES[name], runs, _NOISES[noise], rng, counted)
    outcome = trials - counted.worse - counted.missed
    near = sum(counted.near.values())
    result = "/".join(f"{counted.near[text] / near:.0%}" for text in ("tie", "inconclusive", "worse")) if near else "-"
    return (
        f"{name:<16} {noise:<8} {runs:>4} {counted.best / trials:>6.0%} {outcome / trials:>6.0%} "
        f"{counted.worse / trials:>6.1%} {counted.missed / trials:>7.0%} {result:>14} "
        f"{statistics.mean(counted.covered):>8.1%} {statistics.median(counted.first):>7.3f} "
        f"{statistics.median(counted.again):>6.3f}"
    )


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(
        f"{'points':<16} {'noise':<8} {'runs':>4} {'best':>6} {'told':>6} {'worse':>6} {'missed':>7} "
        f"{'tie/?/worse':>14} {'covered':>8} {'first':>7} {'again':>6}"
    )
    for name in _LANDSCAPES:
        for noise in _NOISES:
            for runs in (5, 9):
                print(row(name, noise, runs, trials))


if __name__ == "__main__":
    main()
