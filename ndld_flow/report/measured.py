"""Profiles of a page: their titles, and the circumstances of a latency: inputs, batch, precision, device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TypeVar

from ndld_flow.base.quantities import milliseconds, share, three_digits
from ndld_flow.base.text import first_of, short_name
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.measurement import percentile
from ndld_flow.records.profile import Profile
from ndld_flow.report.value_text import shape_text

View = TypeVar("View")
UNKNOWN = "unknown"
"""Displayed for what is not recorded, or has no evidence, such as a multiply unit."""


def profile_titles(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return step -> the label of what it profiled; with the step's name where several profiled the same."""
    times = Counter(profile.label for profile in profiles.values())
    return {
        step: short_name(profile.label if times[profile.label] == 1 else f"{profile.label} ({step})")
        for step, profile in profiles.items()
    }


def views_by_profile(profiles: Mapping[str, Profile], view: Callable[[str, Profile], View | None]) -> tuple[View, ...]:
    """Return the views of profiles with layers, by title and profile; those that are None are left out."""
    titles = profile_titles(profiles)
    views = (view(titles[step], profile) for step, profile in profiles.items() if profile.layers)
    return tuple(each for each in views if each is not None)


def quartiles_ms(profile: Profile) -> tuple[float, float]:
    """Return the first and the third quartile of a typical process run, as the profile's latency has its percentiles.

    Those of all passes could be beyond p90, which is a median over runs.
    """
    runs = [run.latency_ms for run in profile.runs if run.latency_ms]
    first, third = (median(percentile(run, percent) for run in runs) if runs else 0.0 for percent in (25, 75))
    return first, third


@lru_cache(maxsize=256)
def short_provider(provider: str) -> str:
    """Shorten `CPUExecutionProvider` to `CPU`."""
    return short_name(provider.removesuffix("ExecutionProvider") or provider, 40)


@dataclass(frozen=True)
class MeasuredView:
    """The circumstances of a profile; those that it does not record are `unknown`."""

    model: str
    inputs: str
    """`x 1x3x320x320 float32`"""
    batch: str
    """Items of one inference."""
    precision: str
    """`float16 92 %, float32 8 %`, of the layers' time."""
    device: str
    latency: str
    """Median of a pass; empty without samples, as are the next two."""
    passes_per_s: str
    items_per_s: str
    """Empty if the batch is unknown."""


def profiler_words(profiles: Sequence[Profile]) -> str:
    """Return a note on whether latencies were measured with a profiler attached."""
    states = {profile.profiler for profile in profiles if profile.latency_ms}
    if len(states) > 1:
        return "some with a profiler attached or not recorded; see how each was measured"
    return {
        "off": "timing pass, no profiler attached",
        "on": "measured with the profiler attached, which slows passes down",
    }.get("".join(states), "not recorded whether a profiler was attached")


def batch_of(profile: Profile) -> int | None:
    """Return the first dimension that all inputs share; None if they differ, or one is dynamic or not recorded."""
    firsts = {tensor.shape[0] for tensor in profile.inputs if tensor.shape}
    return firsts.pop() if len(firsts) == 1 and min(firsts) > 0 else None


def device_of(profile: Profile) -> str:
    """Return the name of the device that ran a profile; empty if it is not recorded."""
    names = profile.machine.gpus if profile.runtime.on_gpu else (profile.machine.cpu,)
    return short_name(", ".join(dict.fromkeys(filter(None, names))), 80)


def measured_inputs(profile: Profile) -> str:
    """Return `x 1x3x320x320 float32`, and the number of inputs beyond two; empty if none is recorded."""
    return first_of(
        [short_name(f"{each.name} {shape_text(each.shape)} {each.dtype}", 80) for each in profile.inputs], 2
    )


def describe_measured(profile: Profile) -> MeasuredView:
    """Return what a profile measured."""
    batch, is_timed = batch_of(profile), bool(profile.latency_ms) and profile.latency.median_ms > 0
    return MeasuredView(
        model=short_name(profile.label, 80),
        inputs=measured_inputs(profile) or UNKNOWN,
        batch=UNKNOWN if batch is None else str(batch),
        precision=_precision(profile),
        device=device_of(profile) or UNKNOWN,
        latency=milliseconds(profile.latency.median_ms) if is_timed else "",
        passes_per_s=three_digits(profile.throughput_per_s) if is_timed else "",
        items_per_s=three_digits(profile.throughput_per_s * batch) if is_timed and batch is not None else "",
    )


def _precision(profile: Profile) -> str:
    """Return the precisions of the layers, by time; by their number without times, such as those of an engine."""
    subject, sums = Subject(profile), Counter[str]()
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        sums[short_name(layer.precision, 40) or UNKNOWN] += median_ms if subject.layers_ms else 1  # type: ignore[assignment]
    total = sums.total()
    parts = [f"{name} {share(part / total)}" for name, part in sums.most_common() if part > 0]
    return sums.most_common(1)[0][0] if len(parts) == 1 else first_of(parts, 2) or UNKNOWN
