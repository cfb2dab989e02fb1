"""The timing pass: how long one run takes, with nothing else between two readings of the clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_TOLD_EVERY_NS = 100_000_000


@dataclass(frozen=True)
class TimingPlan:
    """When to stop."""

    passes: int
    """At least so many passes are measured,"""
    duration_ms: float = 0.0
    """and measuring takes at least so long,"""
    time_limit_ms: float = 0.0
    """but no longer than this; 0 for no limit."""
    warmup_passes: int = 0
    """Passes before the measured ones, at least,"""
    warmup_ms: float = 0.0
    """and at least so long."""
    sleep_ms: float = 0.0
    """Rest before each measured pass."""


@dataclass(frozen=True)
class Timing:
    """What the timing pass gave."""

    latency_ms: tuple[float, ...]
    warmup_passes: int
    warmup_ms: float
    stopped_because: str
    """`passes done`, `duration reached` or `time limit reached`."""


def time_passes(once: Callable[[], None], plan: TimingPlan, tell: Callable[[int, int], None]) -> Timing:
    """Warm up, then measure. `tell(done, total)` is called between passes, at most ten times a second."""
    warmup_passes, warmup_ms = _warm_up(once, plan)
    samples: list[float] = []
    clock = time.perf_counter_ns
    with _no_garbage_collection():
        started = told = clock()
        while True:
            if plan.sleep_ms:
                time.sleep(plan.sleep_ms / 1e3)
            before = clock()
            once()
            after = clock()
            samples.append((after - before) / 1e6)
            reason = _stop(plan, len(samples), (after - started) / 1e6)
            if reason:
                return Timing(tuple(samples), warmup_passes, warmup_ms, reason)
            if after - told > _TOLD_EVERY_NS:
                told = after
                tell(len(samples), max(plan.passes, len(samples)))


def _warm_up(once: Callable[[], None], plan: TimingPlan) -> tuple[int, float]:
    started = time.perf_counter()
    passes, elapsed_ms = 0, 0.0
    while passes < plan.warmup_passes or elapsed_ms < plan.warmup_ms:
        once()
        passes += 1
        elapsed_ms = (time.perf_counter() - started) * 1e3
    return passes, elapsed_ms


def _stop(plan: TimingPlan, passes: int, elapsed_ms: float) -> str:
    if passes >= plan.passes and elapsed_ms >= plan.duration_ms:
        return "passes done" if passes == plan.passes else "duration reached"
    if plan.time_limit_ms and elapsed_ms >= plan.time_limit_ms:
        return "time limit reached"
    return ""


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
