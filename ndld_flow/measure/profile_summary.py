"""The summary line of a profile, and its metrics for gates."""

from __future__ import annotations

import statistics

from ndld_flow.base.quantities import milliseconds
from ndld_flow.measure.stopping import spread, spread_text
from ndld_flow.records.measurement import Metric
from ndld_flow.records.profile import Profile


def _spread(profile: Profile) -> float | None:
    return spread([run.median_ms for run in profile.runs])


def metrics_of(profile: Profile) -> dict[str, Metric]:
    """Return the metrics that gates may name."""
    latency = profile.latency
    found = {
        f"latency.{word}": Metric(value=getattr(latency, f"{word}_ms"), unit="ms")
        for word in ("median", "mean", "min", "max", "p90", "p95", "p99", "std")
    }
    found["latency.cov"] = Metric(value=latency.cov)
    found["throughput.median"] = Metric(value=latency.throughput_per_s * _side_by_side(profile), unit="1/s")
    batch = _batch(profile)
    if batch is not None:
        found["throughput.items"] = Metric(value=found["throughput.median"].value * batch, unit="1/s")
    found["latency.runs"] = Metric(value=len(profile.runs))
    reached = _spread(profile)
    if reached is not None:
        found["latency.spread"] = Metric(value=reached)
    found["load_ms"] = Metric(value=statistics.median(run.load_ms for run in profile.runs), unit="ms")
    if profile.peak_memory_bytes:
        found["memory.peak_bytes"] = Metric(value=profile.peak_memory_bytes, unit="bytes")
    if profile.layers:
        found["layers.sum"] = Metric(value=profile.layers_sum_ms, unit="ms")
        found["layers.count"] = Metric(value=len(profile.layers))
        found["profiler.overhead"] = Metric(value=profile.profiler_overhead)
    found |= profile.tensor_cores.metrics if profile.tensor_cores is not None else {}
    found |= _device_metrics(profile)
    for point in profile.batches:
        items_per_s = point.items_per_s * _side_by_side(profile)
        found[f"batch_{point.batch}.latency.median"] = Metric(value=point.latency.median_ms, unit="ms")
        found[f"batch_{point.batch}.throughput.median"] = Metric(value=items_per_s, unit="1/s")
    return found


def _side_by_side(profile: Profile) -> int:
    """Return the number of inferences in one pass."""
    streams = profile.options.get("streams", 1)
    return streams if isinstance(streams, int) else 1


def _batch(profile: Profile) -> int | None:
    """Return the first dimension that all inputs share, the items of one inference; None where they differ."""
    firsts = {info.shape[0] for info in profile.inputs if info.shape}
    return firsts.pop() if len(firsts) == 1 else None


def _device_metrics(profile: Profile) -> dict[str, Metric]:
    """Return times by the device's clock, and the device memory of the engine."""
    found = {}
    for name in ("enqueue", "h2d", "compute", "d2h"):
        medians = [statistics.median(told) for run in profile.runs if (told := getattr(run, f"{name}_ms"))]
        if medians:
            found[f"{name}.median"] = Metric(value=statistics.median(medians), unit="ms")
    device = profile.conditions.get("device")
    if isinstance(device, dict) and isinstance(used := device.get("device_used_bytes"), int):
        found["memory.device_bytes"] = Metric(value=used, unit="bytes")
    return found


def summarise(profile: Profile) -> str:
    """Return `median 3.2 ms ±1.2 % over 5 runs (790 passes) on CPU, 86 layers`."""
    latency, runs = profile.latency, len(profile.runs)
    provider = profile.providers[0].removesuffix("ExecutionProvider")
    reached = _spread(profile)
    within = "" if reached is None else f" {spread_text(reached)}"
    told = f"median {milliseconds(latency.median_ms)}{within} over {runs} run{'' if runs == 1 else 's'}"
    told += f" ({latency.sample_count} pass{'' if latency.sample_count == 1 else 'es'}) on {provider}"
    if profile.stopped_because.startswith("budget"):
        told += ", budget used"
    return f"{told}, {len(profile.layers)} layers" if profile.layers else told
