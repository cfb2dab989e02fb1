"""Convert layers and timelines of a profile to columns for the page's scripts.

Times are integer nanoseconds and positions are differences to the previous one, which compresses well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import cast

from ndld_flow.base.text import visible_name, visible_text
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.collect_layers import UNKNOWN, LayersView, LayerTimes, channels_text, knows_units
from ndld_flow.report.collect_profiles import short_provider
from ndld_flow.report.encoding import Json, Tensors, Texts, rounded, steps
from ndld_flow.report.page_data import LayerColumns, LayersPayload, TimelinePayload
from ndld_flow.report.value_text import shape_text

_KINDS = {"layer": 0, "overhead": 1, "transfer": 2, "pass": 3}


def layers_payload(view: LayersView, profile: Profile, texts: Texts, tensors: Tensors) -> LayersPayload:
    """Return everything about one profile's layers; `report/layer_data.js` reads it."""
    ceilings = {unit: rounded(peak) for unit, peak in view.peaks.ceilings.items()}
    return {
        "step": view.step,
        "label": view.label,
        "sum_ms": rounded(view.times.sum_ms),
        "pass_ms": rounded(view.pass_ms),
        "columns": _layer_columns(_columns(profile.layers, texts, tensors) | _times(view.times)),
        "timeline": timeline_payload(profile, texts) if profile.timeline else None,
        "roofs": (
            {"bytes_per_s": rounded(view.peaks.bytes_per_s), "ceilings": ceilings}
            if ceilings and not view.peaks.doubt
            else None
        ),
        "only_compute": view.only_compute,
        "missed": list(view.missed),
    }


def untimed_payload(
    step: str, layers: Sequence[Layer], missed: Sequence[int], texts: Texts, tensors: Tensors
) -> LayersPayload:
    """Return the columns of an engine's layers: those of `layers_payload` without times."""
    columns = _layer_columns(_columns(layers, texts, tensors))
    return {"step": step, "label": step, "columns": columns, "missed": list(missed)}


def _times(times: LayerTimes) -> dict[str, Json]:
    median = nanoseconds(times.median_ms)
    return {
        "median_ns": median,
        "below_ns": _apart(median, nanoseconds(times.min_ms)),
        "above_ns": _apart(nanoseconds(times.max_ms), median),
    }


def _columns(layers: Sequence[Layer], texts: Texts, tensors: Tensors) -> dict[str, Json]:
    columns: dict[str, Json] = {
        "index": steps([layer.index for layer in layers]),
        "name": steps(texts.places(map(attrgetter("name"), layers), visible_name)),
        "provider": texts.places(map(attrgetter("provider"), layers), short_provider),
        "dims": texts.places(shape_text(layer.outputs[0].shape) if layer.outputs else "" for layer in layers),
    }
    columns |= {
        name: texts.places(map(attrgetter(name), layers), visible_name)
        for name in ("type", "tactic", "input_precision", "output_precision", "precision_basis")
    }
    columns["role"] = texts.places((layer.purpose for layer in layers), visible_name)
    columns["precision"] = texts.places((layer.precision or UNKNOWN for layer in layers), visible_name)
    if knows_units(layers):
        columns["unit"] = texts.places(layer.unit or UNKNOWN for layer in layers)
    columns["channels"] = texts.places(map(channels_text, layers))
    if any(layer.asked_precision for layer in layers):
        columns["asked"] = texts.places((layer.asked_precision for layer in layers), visible_name)
    columns |= {name: list(map(attrgetter(name), layers)) for name in _NUMBERS}
    for side in ("inputs", "outputs"):
        of_layers = [getattr(layer, side) for layer in layers]
        columns[side] = _lists(of_layers, tensors.places(chain.from_iterable(of_layers)))
    nodes = [layer.onnx_nodes for layer in layers]
    columns["onnx_nodes"] = _lists(nodes, texts.places(chain.from_iterable(nodes), visible_name))
    return columns


_NUMBERS = ("depth", "stream", "macs", "read_bytes", "written_bytes", "weight_bytes")


def _layer_columns(columns: dict[str, Json]) -> LayerColumns:
    """Return the columns that hold anything, and the names, which also give the number of layers."""
    kept = {
        name: column
        for name, column in columns.items()
        if name == "name" or not isinstance(column, list) or any(column)
    }
    return cast(LayerColumns, kept)


def _lists(lists: Iterable[Sequence[object]], places: Sequence[int]) -> dict[str, Json]:
    """Return the lengths of the lists, and all their places concatenated."""
    return {"counts": list(map(len, lists)), "places": steps(places)}


def _apart(above: Sequence[int], below: Sequence[int]) -> list[int]:
    return [high - low for high, low in zip(above, below, strict=True)]


def nanoseconds(values_ms: Iterable[float]) -> list[int]:
    """Convert to integer nanoseconds, finer than any clock; 0 for NaN and values over a year."""
    longest = 366 * 86_400_000.0
    return [round(value * 1e6) if -longest < value < longest else 0 for value in values_ms]


def timeline_payload(profile: Profile, texts: Texts) -> TimelinePayload:
    """Return one pass; `timeline/data.js` reads it. Names are positions in `texts`."""
    spans, layers = profile.timeline, profile.layers
    start = nanoseconds(span.start_ms for span in spans)
    duration = nanoseconds(span.duration_ms for span in spans)
    ends = [begin + long for begin, long in zip(start, duration, strict=True)]
    lanes = list(dict.fromkeys(span.lane for span in spans))
    there = range(len(layers))
    # Membership of a range is fast for an int and slow for other types.
    places = [span.layer if span.layer is not None and span.layer in there else None for span in spans]
    lane_places = {lane: place for place, lane in enumerate(lanes)}
    return {
        "basis": visible_text(profile.timeline_basis),
        "lanes": texts.places(lanes, visible_name),
        "lane": [lane_places[span.lane] for span in spans],
        "depth": [span.depth for span in spans],
        "kind": [_KINDS[span.kind] for span in spans],
        # Relative to the end of the previous span: 0 for adjacent spans.
        "gap_ns": _apart(start, [0, *ends[:-1]]),
        "duration_ns": duration,
        "layer": _layer_steps(places),
        # Empty for a span with the name of its layer.
        "name": texts.places(
            (
                "" if place is not None and layers[place].name == span.name else span.name
                for span, place in zip(spans, places, strict=True)
            ),
            visible_name,
        ),
    }


def _layer_steps(places: Sequence[int | None]) -> list[int | None]:
    """Return the difference of each span's layer from the expected next one; None for a span without a layer."""
    differences: list[int | None] = []
    expected = 0
    for place in places:
        differences.append(None if place is None else place - expected)
        expected = expected if place is None else place + 1
    return differences
