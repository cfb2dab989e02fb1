"""Locked clocks and samples of GPUs during a measurement."""

from __future__ import annotations

import contextlib
import importlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import naming_step
from ndld_flow.measure.gpu_clocks import find_in_nvml, locked_clocks
from ndld_flow.measure.process_runs import ProfilingRequest, Side
from ndld_flow.runtimes.protocol import Timing

PERIOD_S = 0.05
_NO_THROTTLING = 0x1 | 0x2 | 0x10 | 0x100
"""Reasons of NVML for a lower clock that are no throttling: idle, application clocks, GPUs that boost together, the
display's clock."""
_UNITS = {"busy_percent": "% of the time with a kernel running", "sm_mhz": "MHz", "power_w": "W"}


@dataclass
class GpuSamples:
    """Samples and their times."""

    at_s: list[float] = field(default_factory=list)
    """`time.monotonic` of each sample."""
    read: list[dict[str, float]] = field(default_factory=list)
    missing: str = ""
    """The reason why nothing could be read."""

    def within(self, spans: Sequence[tuple[float, float]]) -> dict[str, JsonValue]:
        """Return median, minimum and maximum of each quantity over the samples in these time spans."""
        samples = [
            values
            for at, values in zip(self.at_s, self.read, strict=True)
            if any(begin <= at <= end for begin, end in spans)
        ]
        names = dict.fromkeys(name for values in samples for name in values)
        summary: dict[str, JsonValue] = {"samples": len(samples)}
        for name in names:
            read = [values[name] for values in samples if name in values]
            summary[name] = {"median": statistics.median(read), "min": min(read), "max": max(read)}
        return summary

    def describe(self, summary: Mapping[str, JsonValue]) -> str:
        """Return a sentence about the samples for the profile's notes."""
        if self.missing:
            return f"the GPU was not sampled: {self.missing}"
        if not summary.get("samples"):
            return "the GPU was not sampled: the passes finished before the first sample"
        values = [
            f"{float(str(quantity['median'])):,.0f} {unit}"
            for name, unit in _UNITS.items()
            if isinstance(quantity := summary.get(name), dict)
        ]
        throttled = summary.get("throttled")
        if isinstance(throttled, dict) and throttled["max"]:
            values.append(f"throttled by heat or power {'all' if throttled['min'] else 'some'} of the time")
        return (
            f"GPU during the measurement: {', '.join(values)} "
            f"(medians of {summary['samples']} samples by NVML; "
            "the occupancy of its SMs and memory needs performance counters, which were not read)"
        )


@contextlib.contextmanager
def sampled_gpu(gpu: int) -> Iterator[GpuSamples]:
    """Sample a GPU until the block ends. It never fails: quantities that cannot be read are missing."""
    samples, over = GpuSamples(), threading.Event()
    thread = threading.Thread(target=_sample, args=(gpu, samples, over), daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _sample(gpu: int, samples: GpuSamples, over: threading.Event) -> None:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        samples.missing = "that needs nvidia-ml-py (`pip install nvidia-ml-py`)"
        return
    try:
        nvml.nvmlInit()
        readers = _readers(nvml, find_in_nvml(nvml, gpu))
    except nvml.NVMLError as error:
        samples.missing = f"NVML reports {error}"
        return
    while not over.wait(PERIOD_S):
        samples.at_s.append(time.monotonic())
        values = {}
        for name, read in readers.items():
            with contextlib.suppress(nvml.NVMLError):  # some GPUs lack sensors
                values[name] = float(read())
        samples.read.append(values)
    nvml.nvmlShutdown()


def _readers(nvml: Any, handle: Any) -> dict[str, Callable[[], float]]:  # noqa: ANN401
    return {
        "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "throttled": lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & ~_NO_THROTTLING),
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "pcie_sent_kb_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_received_kb_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
    }


@dataclass
class GpuWatch:
    """Locked clocks and samples by the index of the GPU."""

    clocks: set[int] = field(default_factory=set)
    """GPUs whose clocks are locked."""
    samples: dict[int, GpuSamples] = field(default_factory=dict)

    def describe(self, request: ProfilingRequest, timings: Sequence[Timing]) -> tuple[dict[str, JsonValue], list[str]]:
        """Return conditions and notes for one of the profiles measured during it."""
        gpu = request.session.measured_gpu()
        if gpu is None:
            return {}, []
        conditions: dict[str, JsonValue] = {}
        notes = []
        if gpu in self.clocks:
            conditions["locked_clocks"] = "to the base clock, by NVML"
            notes.append("the GPU's clock was locked to the base clock during the measurement, by NVML")
        samples = self.samples.get(gpu)
        if samples is not None:
            conditions["gpu_samples"] = summary = samples.within(
                [
                    (timing.began_s, timing.began_s + (timing.starts_ms[-1] + timing.latency_ms[-1]) / 1e3)
                    for timing in timings
                ]
            )
            notes.append(samples.describe(summary))
        return conditions, notes


@contextlib.contextmanager
def watched_gpus(sides: Sequence[Side]) -> Iterator[GpuWatch]:
    """Lock clocks and sample GPUs as requested, until the block ends.

    Raises `BackendError` if a clock cannot be locked or unlocked.
    """
    watch = GpuWatch()
    requests = [side.request for side in sides]
    before = {each.session.measured_gpu(): each.restore_clocks for each in requests if each.restore_clocks is not None}
    with contextlib.ExitStack() as stack:
        for side in sides:
            request, gpu = side.request, side.request.session.measured_gpu()
            if gpu is None:
                continue
            if request.lock_clocks and gpu not in watch.clocks:
                with naming_step(side.step):
                    stack.enter_context(locked_clocks(gpu, before.get(gpu)))
                watch.clocks.add(gpu)
            if request.sample_gpu and gpu not in watch.samples:
                watch.samples[gpu] = stack.enter_context(sampled_gpu(gpu))
        yield watch
