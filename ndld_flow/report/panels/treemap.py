"""A treemap of the latency: types of layers, and layers in them, as areas.

The layout is squarified (Bruls, Huizing and van Wijk, 2000, https://doi.org/10.1007/978-3-7091-6783-0_4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import has_timed_layers
from ndld_flow.report.measured import profile_titles
from ndld_flow.report.panel import profiles_panel

_FEWEST = 5
_SERIES = 10
_SMALLEST = 0.002
"""Layers with a smaller share of the sum are one tile of their type."""
_ASPECT = 2.2
"""Width of the picture relative to its height."""


@dataclass(frozen=True)
class Box:
    """A rectangle, in percent of the one that contains it."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Tile:
    """One layer, or the small layers of a type together."""

    name: str
    time: str
    about: str
    """All facts of the layer, for the tooltip."""
    box: Box
    layer: int | None
    """Position of the layer; None for several."""


@dataclass(frozen=True)
class TypeTile:
    """All layers of one type."""

    name: str
    time: str
    share: float
    box: Box
    series: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class TreemapView:
    """The treemap of one profile."""

    label: str
    place: int
    """Position of the profile among those with timed layers."""
    types: tuple[TypeTile, ...]


def collect(profiles: Mapping[str, Profile]) -> tuple[TreemapView, ...]:
    """Return a treemap of each profile with enough timed layers."""
    titles = profile_titles(profiles)
    timed = [(step, profile) for step, profile in profiles.items() if has_timed_layers(profile)]
    views = (TreemapView(titles[step], index, _types(profile)) for index, (step, profile) in enumerate(timed))
    return tuple(view for view in views if sum(len(each.tiles) for each in view.types) >= _FEWEST)


def _types(profile: Profile) -> tuple[TypeTile, ...]:
    subject = Subject(profile)
    members: dict[str, list[int]] = defaultdict(list)
    for index in subject.longest_first(range(len(subject.layers))):
        if subject.medians_ms[index] > 0:
            members[subject.layers[index].type].append(index)
    ordered = sorted(members.items(), key=lambda item: -subject.sum_ms(item[1]))
    sums = [subject.sum_ms(places) for _, places in ordered]
    return tuple(
        TypeTile(
            name=short_name(kind, 60) or "(no type)",
            time=milliseconds(sum_ms),
            share=sum_ms / subject.layers_ms,
            box=box,
            series=number % _SERIES,
            tiles=tuple(_tiles(subject, places, box)),
        )
        for number, ((kind, places), sum_ms, box) in enumerate(zip(ordered, sums, squarify(sums, _ASPECT), strict=True))
    )


def _tiles(subject: Subject, places: Sequence[int], around: Box) -> Iterator[Tile]:
    large = [index for index in places if subject.medians_ms[index] >= _SMALLEST * subject.layers_ms]
    small = places[len(large) :]
    times = [subject.medians_ms[index] for index in large] + ([subject.sum_ms(small)] if small else [])
    boxes = squarify(times, _ASPECT * around.width / max(around.height, 1e-9))
    for index, box in zip(large, boxes, strict=False):
        layer, median_ms = subject.layers[index], subject.medians_ms[index]
        name, time = visible_name(layer.name), milliseconds(median_ms)
        precision = short_name(layer.precision, 30) or "precision unknown"
        about = f"{short_name(layer.name, 120)}\n{short_name(layer.type, 60)}, {precision}"
        about += f"\n{time}, {share(median_ms / subject.layers_ms)} of the layer sum"
        yield Tile(short_name(name, 80), time, about, box, index)
    if small:
        name = f"{len(small)} small layer{'s' if len(small) > 1 else ''}"
        yield Tile(name, milliseconds(times[-1]), f"{name}\n{milliseconds(times[-1])}", boxes[-1], None)


def squarify(values: Sequence[float], aspect: float) -> list[Box]:
    """Return boxes with areas in proportion to positive values, given in descending order.

    `aspect` is the width of the whole relative to its height. Each row of boxes is laid along the shorter side, and
    grows while that makes its boxes more square.
    """
    left, top, width, height = 0.0, 0.0, aspect, 1.0
    total, boxes, start = sum(values), [], 0
    area = aspect / total if total > 0 else 0.0
    while start < len(values):
        side, end = min(width, height), start + 1
        while end < len(values) and _worst(values[start : end + 1], side, area) <= _worst(
            values[start:end], side, area
        ):
            end += 1
        thickness = sum(values[start:end]) * area / side if side > 0 else 0.0
        at = top if width >= height else left
        for value in values[start:end]:
            length = value * area / thickness if thickness > 0 else 0.0
            box = (left, at, thickness, length) if width >= height else (at, top, length, thickness)
            boxes.append(Box(100 * box[0] / aspect, 100 * box[1], 100 * box[2] / aspect, 100 * box[3]))
            at += length
        if width >= height:
            left, width = left + thickness, max(width - thickness, 0.0)
        else:
            top, height = top + thickness, max(height - thickness, 0.0)
        start = end
    return boxes


def _worst(row: Sequence[float], side: float, area: float) -> float:
    """Return the largest ratio of sides in a row of boxes along a side."""
    total = sum(row) * area
    most, least = max(row) * area, min(row) * area
    return max(side**2 * most / total**2, total**2 / (side**2 * least)) if total > 0 and least > 0 and side > 0 else 0.0


PANEL = profiles_panel("Treemap", collect, is_tab=True)
