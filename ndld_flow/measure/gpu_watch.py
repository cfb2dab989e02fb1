"""Locked clocks and samples of GPUs during a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from ndld_flow.base.errors import naming_step
from ndld_flow.measure.gpu_sampling import GpuSamples, sampled_gpu
from ndld_flow.measure.locked_clocks import locked_clocks
from ndld_flow.measure.profiling_request import ProfilingRequest, Side
from ndld_flow.runtimes.protocol import Timing


@dataclass
class GpuWatch:
    """Locked clocks and samples by the index of the GPU."""

    clocks: dict[int, str] = field(default_factory=dict)
    """GPU -> description of its locked clock."""
    samples: dict[int, GpuSamples] = field(default_factory=dict)

    def describe(self, request: ProfilingRequest, timings: Sequence[Timing]) -> tuple[dict[str, JsonValue], list[str]]:
        """Return conditions and notes for one of the profiles measured meanwhile."""
        gpu = request.session.measured_gpu()
        if gpu is None:
            return {}, []
        conditions: dict[str, JsonValue] = {}
        notes = []
        if gpu in self.clocks:
            conditions["locked_clocks"] = self.clocks[gpu]
            notes.append(f"the GPU's clock was locked to its base clock during the measurement, {self.clocks[gpu]}")
        samples = self.samples.get(gpu)
        if samples is not None:
            conditions["gpu_samples"] = summary = samples.within(list(map(_span, timings)))
            notes.append(samples.describe(summary))
        return conditions, notes


@contextlib.contextmanager
def watched_gpus(sides: Sequence[Side]) -> Iterator[GpuWatch]:
    """Lock clocks and sample GPUs as the requests ask, until the block ends.

    Raises `BackendError` when a clock cannot be locked or unlocked.
    """
    watch = GpuWatch()
    with contextlib.ExitStack() as held:
        for side in sides:
            request, gpu = side.request, side.request.session.measured_gpu()
            if gpu is None:
                continue
            if request.lock_clocks and gpu not in watch.clocks:
                with naming_step(side.step):
                    watch.clocks[gpu] = held.enter_context(locked_clocks(gpu))
            if request.sample_gpu and gpu not in watch.samples:
                watch.samples[gpu] = held.enter_context(sampled_gpu(gpu))
        yield watch


def _span(timing: Timing) -> tuple[float, float]:
    """Return begin and end of the measured passes, by `time.monotonic`."""
    return timing.began_s, timing.began_s + (timing.starts_ms[-1] + timing.latency_ms[-1]) / 1e3
