"""The timing pass: how long one run takes, with nothing else between two readings of the clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ndld_flow.runtimes.device_facts import DeviceTimes

_TOLD_EVERY_NS = 100_000_000


@dataclass(frozen=True)
class TimingPlan:
    """When to stop, within one process run."""

    passes: int
    """At least so many passes are measured,"""
    duration_ms: float = 0.0
    """and measuring takes at least so long,"""
    limit_ms: float = 0.0
    """but warm-up and measuring together no longer than this (one pass is always measured); 0 for no limit."""
    warmup_passes: int = 0
    """Passes before the measured ones, at least,"""
    warmup_ms: float = 0.0
    """and at least so long, but no more than half of the limit."""
    sleep_ms: float = 0.0
    """Rest before each measured pass."""


@dataclass(frozen=True)
class Copies:
    """The copies of a pass's data, for providers with their own memory.

    Each returns its duration in ms by the device's clock, or None if only the host's clock measures it.
    """

    to_device: Callable[[], float | None]
    from_device: Callable[[], float | None]


@dataclass
class Timing:
    """The result of the timing pass; samples in order."""

    latency_ms: list[float] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)
    """When each pass began, after the first one."""
    h2d_ms: list[float] = field(default_factory=list)
    """Copy of the inputs to the device, before each pass; empty without copies."""
    d2h_ms: list[float] = field(default_factory=list)
    """Copy of the outputs from the device, after each pass; empty without copies."""
    enqueue_ms: list[float] = field(default_factory=list)
    """Time to launch each pass; this and the following are empty where no device tells."""
    compute_ms: list[float] = field(default_factory=list)
    """Time on the device without copies."""
    warmup_passes: int = 0
    warmup_ms: float = 0.0
    began_s: float = 0.0
    """`time.monotonic` when the first measured pass began: it is the same clock in all processes."""
    limit_reached: bool = False
    """Passes or time were still missing when the limit ended it."""

    def keep(self, told: DeviceTimes) -> None:
        """Add what is known of one pass besides its latency."""
        for name in ("enqueue_ms", "h2d_ms", "compute_ms", "d2h_ms"):
            ms = getattr(told, name)
            if ms is not None:
                getattr(self, name).append(ms)


def time_passes(
    once: Callable[[], None],
    plan: TimingPlan,
    progress: Callable[[int, int], None],
    copies: Copies | None = None,
    device_times: Callable[[], DeviceTimes] | None = None,
) -> Timing:
    """Warm up, then measure. `progress(done, total)` is called between passes, at most ten times a second.

    `device_times` is asked after each pass, and is no part of it.
    """
    clock = time.perf_counter_ns
    timing = Timing()
    entered = clock()
    _warm_up(once, plan, timing, copies)
    with _no_garbage_collection():
        timing.began_s = time.monotonic()
        started = told = clock()
        while True:
            if plan.sleep_ms:
                time.sleep(plan.sleep_ms / 1e3)
            if copies:
                timing.keep(DeviceTimes(h2d_ms=_duration_ms(copies.to_device)))
            before = clock()
            once()
            after = clock()
            timing.latency_ms.append((after - before) / 1e6)
            timing.starts_ms.append((before - started) / 1e6)
            _look_closer(timing, copies, device_times)
            if _is_over(plan, timing, (after - started) / 1e6, (after - entered) / 1e6):
                first = timing.starts_ms[0]
                timing.starts_ms = [start - first for start in timing.starts_ms]
                return timing
            if after - told > _TOLD_EVERY_NS:
                told = after
                progress(len(timing.latency_ms), max(plan.passes, len(timing.latency_ms)))


def _warm_up(once: Callable[[], None], plan: TimingPlan, timing: Timing, copies: Copies | None) -> None:
    started = time.perf_counter_ns()
    limit_ms = plan.limit_ms / 2 or float("inf")
    while timing.warmup_passes < plan.warmup_passes or timing.warmup_ms < plan.warmup_ms:
        once()
        timing.warmup_passes += 1
        timing.warmup_ms = (time.perf_counter_ns() - started) / 1e6
        if timing.warmup_ms >= limit_ms:
            break
    if copies and timing.warmup_passes:
        copies.to_device()
        copies.from_device()


def _look_closer(timing: Timing, copies: Copies | None, device_times: Callable[[], DeviceTimes] | None) -> None:
    """Out of the pass that has just been measured."""
    if device_times:
        timing.keep(device_times())
    if copies:
        timing.keep(DeviceTimes(d2h_ms=_duration_ms(copies.from_device)))


def _is_over(plan: TimingPlan, timing: Timing, measured_ms: float, elapsed_ms: float) -> bool:
    if len(timing.latency_ms) >= plan.passes and measured_ms >= plan.duration_ms:
        return True
    timing.limit_reached = bool(plan.limit_ms) and elapsed_ms >= plan.limit_ms
    return timing.limit_reached


def _duration_ms(work: Callable[[], float | None]) -> float:
    before = time.perf_counter_ns()
    told = work()
    return (time.perf_counter_ns() - before) / 1e6 if told is None else told


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python's collector would stop the clock's owner at odd moments (timeit does the same)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
