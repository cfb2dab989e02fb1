"""Histograms of the layers' latency and of their footprint."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import milliseconds, size
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_footprint import tensor_bytes
from ndld_flow.report.measured import profile_titles
from ndld_flow.report.panel import profiles_panel

_FEWEST = 5
"""Minimum number of layers; fewer are read faster in the table."""


@dataclass(frozen=True)
class Bin:
    """The layers with values in one range."""

    range: str
    """`5 µs to 10 µs`; the lower end is included."""
    count: int
    share: float
    """Share of the sum of all values."""
    relative: float
    """Count relative to the largest bin, 0 to 1."""


@dataclass(frozen=True)
class Histogram:
    """The distribution of one value over the layers."""

    title: str
    bins: tuple[Bin, ...]
    zeros: int
    """Number of layers with a value of zero, which are in no bin."""
    unknown: int
    """Number of layers whose value is not known."""


@dataclass(frozen=True)
class DistributionView:
    """The histograms of one profile."""

    label: str
    histograms: tuple[Histogram, ...]


def collect(profiles: Mapping[str, Profile]) -> tuple[DistributionView, ...]:
    """Return the histograms of each profile with enough layers."""
    titles = profile_titles(profiles)
    views = (
        DistributionView(titles[step], tuple(_histograms(profile)))
        for step, profile in profiles.items()
        if len(profile.layers) >= _FEWEST
    )
    return tuple(view for view in views if view.histograms)


def _histograms(profile: Profile) -> Iterator[Histogram]:
    subject = Subject(profile)
    layers = subject.layers
    if subject.layers_ms > 0:
        times = [median if layer.samples_ms else None for layer, median in zip(layers, subject.medians_ms, strict=True)]
        steps = (step * 10.0**power for power in itertools.count(-6) for step in (1, 2, 5))
        yield _histogram("Latency", times, milliseconds, steps)
    values: dict[str, list[float | None]] = {
        "Weights": [layer.weight_bytes for layer in layers],
        "Activations": [
            sum(map(tensor_bytes, layer.outputs)) if layer.outputs and all(t.shape for t in layer.outputs) else None
            for layer in layers
        ],
    }
    for title, sizes in values.items():
        if any(sizes):
            yield _histogram(title, sizes, size, (4.0**power for power in itertools.count()))


def _histogram(
    title: str, values: Sequence[float | None], text: Callable[[float], str], edges: Iterator[float]
) -> Histogram:
    """Return counts between edges that grow geometrically: times and sizes of layers span many magnitudes."""
    known = [value for value in values if value is not None]
    positive = sorted(value for value in known if value > 0)
    low, bins, total = 0.0, [], sum(positive) or 1.0
    for high in edges:
        inside = [value for value in positive if low <= value < high]
        bins.append((low, high, len(inside), sum(inside) / total))
        low = high
        if not positive or high > positive[-1]:
            break
    while bins and not bins[0][2]:
        del bins[0]

    def end_text(edge: float) -> str:
        """Return an edge, which is a round number, without zeros after the point."""
        return re.sub(r"\.0+(?=\D)", "", text(edge))

    most = max((each[2] for each in bins), default=1)
    return Histogram(
        title=title,
        bins=tuple(
            Bin(
                f"{end_text(begin)} to {end_text(end)}" if begin else f"below {end_text(end)}",
                number,
                part,
                number / most,
            )
            for begin, end, number, part in bins
        ),
        zeros=len(known) - len(positive),
        unknown=len(values) - len(known),
    )


PANEL = profiles_panel("Distribution", collect, is_tab=True)
