"""Encode the data of the page of activations; maps and pictures are separate and decoded on demand."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.activations import Activations, CapturedTensor, ChannelStatistics, Histogram
from ndld_flow.report.activations.maps import PackedMap, PackedMaps, is_within_folder
from ndld_flow.report.encoding import rounded
from ndld_flow.report.page_data import (
    ActivationsPayload,
    ChannelColumns,
    HistogramPayload,
    MapPayload,
    NumberText,
    RangePayload,
    TensorPayload,
)
from ndld_flow.report.value_text import shape_text


def activations_payload(record: Activations, maps: PackedMaps, files: str) -> ActivationsPayload:
    """Return all data of the page, compressed. `files` is the path of the document's files from the page."""
    divergence = {item.tensor: item for item in record.divergence}
    held: defaultdict[int, list[PackedMap]] = defaultdict(list)
    for item in maps.maps:
        held[item.tensor].append(item)
    data: ActivationsPayload = {
        "model": short_name(record.model, 60),
        "reference": short_name(record.reference, 60),
        "format": short_name(record.range_format, 20),
        "samples": [
            {
                "label": short_name(sample.label, 120),
                "inputs": [
                    (short_name(name, 80), short_name(_short_path(source, sample.label), 200))
                    for name, source in sample.inputs.items()
                ],
                "picture": maps.pictures.get(place, -1),
            }
            for place, sample in enumerate(record.samples)
        ],
        "tensors": [
            _tensor(tensor, divergence.get(tensor.tensor), [_map(item, files) for item in held[place]])
            for place, tensor in enumerate(record.tensors)
        ],
    }
    return data


def number_text(value: float | None) -> NumberText:
    """Round to six significant digits; NaN and infinity become text that JavaScript's `Number` parses."""
    if value is None or isinstance(value, int):
        return value
    if math.isfinite(value):
        return rounded(value, 6)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _short_path(how: str, label: str) -> str:
    """Return the origin of values, with the path of a file as short as in the sample's label."""
    places = [place for part in label.split(", ") if part and (place := how.rfind(f"/{part}")) >= 0]
    kind = "image " if how.startswith("image ") else ""
    return f"{kind}{how[places[0] + 1 :]}" if places else how


def _tensor(tensor: CapturedTensor, divergence: LayerDivergence | None, maps: list[MapPayload]) -> TensorPayload:
    return {
        "name": visible_name(tensor.tensor),
        "node": visible_name(tensor.node),
        "op": short_name(tensor.op_type, 60),
        "position": tensor.position,
        "dtype": short_name(tensor.dtype, 40),
        "reference_dtype": short_name(tensor.reference_dtype, 40),
        "shape": shape_text(tensor.shape),
        "layout": short_name(tensor.layout, 20),
        "range": _range(tensor.range),
        "reference_range": _range(tensor.reference_range) if tensor.reference_range else None,
        "histogram": _histogram(tensor.histogram),
        "reference_histogram": _histogram(tensor.reference_histogram),
        "saturated": tensor.saturated,
        "reference_saturated": tensor.reference_saturated,
        "channel_count": tensor.channel_count,
        "channels_by": short_name(tensor.channels_by, 40),
        "channels": _channels(tensor.channels),
        "divergence": None
        if divergence is None
        else {
            "metrics": {short_name(name, 40): number_text(value) for name, value in divergence.metrics.items()},
            "nonfinite": divergence.nonfinite,
        },
        "maps": maps,
    }


def _range(values: TensorRange) -> RangePayload:
    return {
        "elements": values.elements,
        "low": number_text(values.minimum),
        "high": number_text(values.maximum),
        "rms": number_text(values.rms),
        "smallest": number_text(values.smallest_abs),
        "nan": values.nan_count,
        "inf": values.inf_count,
        "beyond": number_text(values.beyond_share),
        "subnormal": number_text(values.subnormal_share),
        "vanishing": number_text(values.vanishing_share),
    }


def _histogram(histogram: Histogram | None) -> HistogramPayload | None:
    if histogram is None or not histogram.counts:
        return None
    return {"low": number_text(histogram.low), "high": number_text(histogram.high), "counts": list(histogram.counts)}


def _channels(channels: Sequence[ChannelStatistics]) -> ChannelColumns:
    def column(values: Iterable[float | None]) -> list[NumberText]:
        return list(map(number_text, values))

    return {
        "number": [channel.channel for channel in channels],
        "minimum": column(channel.minimum for channel in channels),
        "maximum": column(channel.maximum for channel in channels),
        "mean": column(channel.mean for channel in channels),
        "rms": column(channel.rms for channel in channels),
        "nonfinite": [channel.nonfinite for channel in channels],
        "saturated": [channel.saturated for channel in channels],
        "difference": column(channel.difference_rms for channel in channels),
    }


def _map(packed_map: PackedMap, files: str) -> MapPayload:
    source = packed_map.source
    return {
        "sample": source.sample,
        "side": source.side if source.side == "reference" else "candidate",
        "chunk": packed_map.chunk,
        "over": packed_map.over,
        "channels": len(packed_map.numbers),
        "numbers": list(packed_map.numbers),
        "total": source.total_channels,
        "height": source.height,
        "width": source.width,
        "full": (source.full_height, source.full_width),
        "scale": source.scale,
        "low": _bound(source.low),
        "high": _bound(source.high),
        "array": files + source.array_file if is_within_folder(source.array_file) else "",
    }


def _bound(value: float) -> float:
    """Return a bound with all digits, which the codes need; 0 for NaN."""
    return value if math.isfinite(value) else 0.0
