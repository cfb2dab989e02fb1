"""The timing pass: the time of each pass, with nothing else between two readings of the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.runtimes.protocol import Binding, DeviceTimes, Timing

_REPORT_EVERY_NS = 100_000_000


@dataclass(frozen=True)
class TimingPlan:
    """The extent of the timing pass of one process run."""

    passes: int
    """Minimum number of measured passes."""
    duration_ms: float = 0.0
    """Minimum duration of measuring."""
    limit_ms: float = 0.0
    """Maximum duration of warm-up and measuring together, after the first pass; 0 for no limit.

    One pass is always measured. The first warm-up pass does not count: on a GPU it takes seconds, in which the runtime
    searches for algorithms, and only milliseconds would be left for passes."""
    warmup_passes: int = 0
    """Minimum number of passes before the measured ones."""
    warmup_ms: float = 0.0
    """Minimum duration of the warm-up, within half of the limit."""
    sleep_ms: float = 0.0
    """Pause before each measured pass."""


class SequencePasses(Protocol):
    """Passes that are the steps of a sequence, which starts again after its last step."""

    count: int
    """Number of steps."""

    def restart(self) -> None:
        """Let the next pass be the first step."""

    def prepare(self) -> None:
        """Feed the next step, outside of the measured time."""


def time_passes(
    binding: Binding, plan: TimingPlan, progress: Callable[[int, int], None], steps: SequencePasses | None = None
) -> Timing:
    """Warm up, then measure passes of a binding, each with its copies and the times by the device's clock.

    `progress(done, total)` is called between passes, at most ten times a second, with the number of passes that the
    limits allow at the pace so far. With `steps`, measuring begins at the first step, and ends after the last one
    unless the limit is reached before.
    """
    clock = time.perf_counter_ns
    timing = Timing()
    _warm_up(binding, plan, timing, steps)
    warmed_ms = timing.warmup_ms - timing.first_pass_ms
    if steps:
        steps.restart()
    with paused_garbage_collection():
        timing.began_s = time.monotonic()
        started = reported = clock()
        while True:
            if plan.sleep_ms:
                time.sleep(plan.sleep_ms / 1e3)
            _feed(binding, timing, steps)
            before = clock()
            binding.run()
            after = clock()
            timing.latency_ms.append((after - before) / 1e6)
            timing.starts_ms.append((before - started) / 1e6)
            timing.add(binding.device_times())
            if binding.can_copy:
                timing.add(DeviceTimes(d2h_ms=_duration_ms(binding.copy_out)))
            is_enough = _is_enough(timing, plan, (after - started) / 1e6, steps)
            if not is_enough and plan.limit_ms and warmed_ms + (after - started) / 1e6 >= plan.limit_ms:
                timing.limit_reached = True
            if is_enough or timing.limit_reached:
                first = timing.starts_ms[0]
                timing.starts_ms = [start - first for start in timing.starts_ms]
                return timing
            if after - reported > _REPORT_EVERY_NS:
                reported = after
                progress(len(timing.latency_ms), _foresee(timing, plan, warmed_ms, (after - started) / 1e6))


def _foresee(timing: Timing, plan: TimingPlan, warmed_ms: float, elapsed_ms: float) -> int:
    """Return the number of passes that will be measured at the pace so far."""
    done = len(timing.latency_ms)
    pass_ms = elapsed_ms / done
    wanted = max(plan.passes, math.ceil(plan.duration_ms / pass_ms))
    allowed = math.ceil((plan.limit_ms - warmed_ms) / pass_ms) if plan.limit_ms else wanted
    return max(done, min(wanted, allowed))


def _is_enough(timing: Timing, plan: TimingPlan, elapsed_ms: float, steps: SequencePasses | None) -> bool:
    passes = len(timing.latency_ms)
    is_whole = steps is None or passes % steps.count == 0
    return passes >= plan.passes and elapsed_ms >= plan.duration_ms and is_whole


def _feed(binding: Binding, timing: Timing, steps: SequencePasses | None) -> None:
    """Prepare the next pass."""
    if steps:
        steps.prepare()
    if binding.can_copy:
        timing.add(DeviceTimes(h2d_ms=_duration_ms(binding.copy_in)))


def _warm_up(binding: Binding, plan: TimingPlan, timing: Timing, steps: SequencePasses | None) -> None:
    started = time.perf_counter_ns()
    limit_ms = plan.limit_ms / 2 or float("inf")
    while timing.warmup_passes < plan.warmup_passes or timing.warmup_ms < plan.warmup_ms:
        if steps:
            steps.prepare()
        binding.run()
        timing.warmup_passes += 1
        timing.warmup_ms = (time.perf_counter_ns() - started) / 1e6
        timing.first_pass_ms = timing.first_pass_ms or timing.warmup_ms
        if timing.warmup_ms - timing.first_pass_ms >= limit_ms:
            break
    if binding.can_copy and timing.warmup_passes:
        binding.copy_in()
        binding.copy_out()


def _duration_ms(work: Callable[[], float | None]) -> float:
    before = time.perf_counter_ns()
    by_device_ms = work()
    return (time.perf_counter_ns() - before) / 1e6 if by_device_ms is None else by_device_ms
