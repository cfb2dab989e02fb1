"""The stopping rule of process runs: their medians agree, or the time is used up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ndld_flow.base.quantities import counted, seconds
from ndld_flow.measure.timing_pass import TimingPlan
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.runtimes.protocol import Timing

_FEWEST_TO_TRUST = 5
"""The interval of fewer medians is too short: the whole range of 5 values contains the median with 94 % confidence."""


@dataclass(frozen=True)
class MeasuringPlan:
    """The limits for measuring one model, over all process runs."""

    runs: int = 5
    """Minimum number of process runs."""
    passes: int = 100
    """Minimum number of measured passes, over the minimum number of runs."""
    duration_ms: float = 0.0
    """Minimum time of measured passes, over the minimum number of runs."""
    stable: float = 0.03
    """Continue until the median's confidence interval is within this fraction of it: 0.03 is ±3 %; 0 stops at
    `runs`."""
    budget_ms: float = 20_000.0
    """No run starts after this time of loading, warming up and measuring; each run gets its share of it."""
    warmup_passes: int = 5
    """Minimum number of passes before the measured ones of each run."""
    warmup_ms: float = 200.0
    """Minimum duration of each run's warm-up."""
    sleep_ms: float = 0.0
    """Pause before each measured pass."""

    def share(self, runs: int) -> TimingPlan:
        """Return the plan of the timing pass of one of this many runs."""
        return TimingPlan(
            passes=math.ceil(self.passes / runs),
            duration_ms=self.duration_ms / runs,
            limit_ms=self.budget_ms / runs,
            warmup_passes=self.warmup_passes,
            warmup_ms=self.warmup_ms,
            sleep_ms=self.sleep_ms,
        )


def spread(run_medians_ms: Sequence[float]) -> float | None:
    """Return the relative distance of the 95 % bootstrap interval of the median from it; None for a single run."""
    if len(run_medians_ms) < 2:
        return None
    low, high = median_interval(run_medians_ms)
    median = statistics.median(run_medians_ms)
    return max(high - median, median - low) / median


@dataclass
class Tally:
    """The progress of measuring one model."""

    plan: MeasuringPlan
    least: int
    """Minimum number of process runs: the largest that any of the models measured in turns requests."""
    medians_ms: list[float] = field(default_factory=list)
    used_ms: float = 0.0
    cut_short: bool = False
    """A run reached the limit of its share."""

    def add(self, timing: Timing, used_ms: float) -> None:
        """Count one more process run."""
        self.medians_ms.append(statistics.median(timing.latency_ms))
        self.used_ms += used_ms
        self.cut_short = self.cut_short or timing.limit_reached

    @property
    def is_stable(self) -> bool:
        if not self.plan.stable or len(self.medians_ms) < max(self.least, _FEWEST_TO_TRUST):
            return False
        reached = spread(self.medians_ms)
        return reached is not None and reached <= self.plan.stable

    @property
    def wants_more(self) -> bool:
        """Return whether more runs are needed, regardless of the budget."""
        return len(self.medians_ms) < self.least or (self.plan.stable > 0 and not self.is_stable)


def go_on(tallies: Sequence[Tally]) -> bool:
    """Return whether another round is due. Models that take turns get equally many runs, and share their budgets."""
    used, budget = (sum(ms) for ms in zip(*((t.used_ms, t.plan.budget_ms) for t in tallies), strict=True))
    return used < budget and any(tally.wants_more for tally in tallies)


def stopped_because(tally: Tally, all_tallies: Sequence[Tally]) -> str:
    """Return the reason for stopping, such as `stable: ±1.2 % after 5 runs`."""
    count = len(tally.medians_ms)
    runs = counted(count, "run")
    reached = spread(tally.medians_ms)
    outcome = f"after {runs}" if reached is None else f"{spread_text(reached)} after {runs}"
    if tally.is_stable:
        return f"stable: {outcome}"
    if tally.cut_short or tally.wants_more:
        budget_ms = sum(each.plan.budget_ms for each in all_tallies)
        shared = f" for {len(all_tallies)} models in turns" if len(all_tallies) > 1 else ""
        budget = f"{budget_ms / 1e3:g} s" if budget_ms < 60_000 else seconds(budget_ms / 1e3)
        return f"budget of {budget}{shared} used: {outcome}"
    return f"runs done: {outcome}"


def spread_text(ratio: float) -> str:
    """Return a ratio as `±1.2 %`."""
    percent = ratio * 100
    if percent < 0.095:
        return f"±{percent:.1g} %"
    return f"±{percent:.1f} %" if percent < 99.95 else f"±{percent:,.0f} %"
