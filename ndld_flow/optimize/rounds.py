"""Alternating passes of open models in one process: who is faster, and how surely.

In a round each model has a turn, in random order. The drift of the machine is in all turns of a round, so that models
are compared by the differences of the logarithms of their times in the rounds that both were in. A trimmed mean of
these (Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61, 1974) leaves out the rounds
that were disturbed. A race looks at the result after every round and stops when it shows who is faster: the intervals
are those of 98 % confidence, so that 95 % of equal models are found equal in the end. What one process shares, such as
its memory layout, is in all rounds: this chooses, and fresh processes prove.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ndld_flow.profiles.compare.intervals import two_sided_p

_FIRST_ROUNDS, _MOST_FIRST_ROUNDS = 3, 8
EQUAL = 0.01
"""Half the interval of a ratio within which it does not matter who is faster."""
_WARM_MS, _TURN_MS = 4.0, 6.0
"""Duration of a turn of the slowest model, which short passes share, before it is measured and while it is."""
_MOST_PASSES = 8
"""The most stretches of a turn, and passes of a stretch."""
_TRIMMED_FROM = 6
"""Number of rounds from which the lowest and the highest difference are left out."""
_LEAST_ERROR = 1e-4
_UNKNOWN = 9.0
"""Half the interval of a difference of which nothing is known."""
_SETTLE_S = 0.004
"""Threads of a pool spin after a pass before they sleep: the next model would share the CPUs with them."""


class Ratio(NamedTuple):
    """The logarithm of one model's time over another's, and half its interval of 98 % confidence."""

    log: float
    half: float
    rounds: int

    @property
    def low(self) -> float:
        return self.log - self.half

    @property
    def high(self) -> float:
        return self.log + self.half


@dataclass
class Racer:
    """An open model."""

    name: str
    run: Callable[[], object]
    """Runs one pass, of the next sample if there are several."""
    parallel: bool
    """Several threads may run a pass: its time is that of the clock, and not that of the CPUs."""
    ms: float = math.inf
    """Time of a pass in its quickest stretch so far."""
    logs: dict[int, float] = field(default_factory=dict)
    """Round -> the logarithm of the time of a pass."""
    restart: Callable[[int], object] | None = None
    """Lets the next pass run the sample of this number; None if there is only one."""

    def measure(self, stretches: int, passes: int = 1, *, parallel: bool, sample: int = 0) -> float:
        """Run stretches of some passes of a sample; return the ms of a pass in the quickest: CPU time of the process,
        or wall time of parallel ones.

        Of several samples, the one before it runs before each pass: their sizes change in use, too.
        """
        clock = time.perf_counter_ns if parallel else time.process_time_ns
        quickest = math.inf
        for _ in range(stretches):
            spent = 0
            for _ in range(passes):
                if self.restart is not None:
                    self.restart(sample - 1)
                    self.run()
                start = clock()
                self.run()
                spent += clock() - start
            quickest = min(quickest, spent / passes / 1e6)
        self.ms = min(self.ms, max(quickest, 1e-6))
        return max(quickest, 1e-6)


@dataclass
class Rounds:
    """The rounds of all racers."""

    count: int = 0

    def run(self, racers: Iterable[Racer], times: int) -> None:
        """Let each racer have a turn in each of some rounds.

        All have as many stretches, of about the same duration: the quickest of several passes against the only pass of
        a slower model would favour the quick one by a tenth.
        """
        entered = list(racers)
        parallel = any(racer.parallel for racer in entered)
        slowest_ms = max(racer.ms for racer in entered)
        stretches = max(1, min(_MOST_PASSES, int(_TURN_MS / slowest_ms)))
        for _ in range(times):
            rng = random.Random(self.count)  # noqa: S311 - the order of turns is not a secret
            for racer in rng.sample(entered, len(entered)):
                if parallel:
                    time.sleep(_SETTLE_S)
                warm_ns = time.perf_counter_ns() + _WARM_MS * 1e6
                while time.perf_counter_ns() < warm_ns:
                    racer.run()  # its weights come into the caches, and its threads wake up
                passes = max(1, min(_MOST_PASSES, int(slowest_ms / racer.ms)))
                ms = racer.measure(stretches, passes, parallel=parallel, sample=self.count)
                racer.logs[self.count] = math.log(ms)
            self.count += 1

    def tell_apart(self, racer: Racer, other: Racer, beside: Iterable[Racer] = ()) -> Ratio:
        """Let two alternate until it is known who is faster, or that it does not matter; `beside`: racers that have a
        turn in the first rounds, too.
        """
        self.run([other, racer, *beside], _FIRST_ROUNDS)
        ratio = compare(racer, other)
        while abs(ratio.log) < ratio.half and ratio.rounds < _MOST_FIRST_ROUNDS and ratio.half > EQUAL:
            self.run([other, racer], 1)
            ratio = compare(racer, other)
        return ratio


def compare(racer: Racer, other: Racer) -> Ratio:
    """Return the ratio of two racers' times, from the rounds that both were in."""
    return estimate(racer.logs, other.logs)


def estimate(times: Mapping[int, float], others: Mapping[int, float]) -> Ratio:
    """Return the trimmed mean of the differences in common rounds, with its interval."""
    differences = sorted(times[number] - others[number] for number in times.keys() & others.keys())
    count = len(differences)
    trimmed = 1 if count >= _TRIMMED_FROM else 0
    kept = differences[trimmed : count - trimmed]
    if len(kept) < 2:
        return Ratio(kept[0] if kept else 0.0, _UNKNOWN, count)
    mean = math.fsum(kept) / len(kept)
    winsorized = [kept[0]] * trimmed + kept + [kept[-1]] * trimmed
    centre = math.fsum(winsorized) / count
    spread = math.fsum((each - centre) ** 2 for each in winsorized)
    error = math.sqrt(spread / (len(kept) * (len(kept) - 1))) + _LEAST_ERROR
    return Ratio(mean, _quantile(len(kept) - 1) * error, count)


@cache
def _quantile(freedom: int) -> float:
    """Return the quantile of Student's t whose two-sided p-value is 2 %."""
    low, high = 0.0, 40.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 0.02 else (low, middle)
    return high
