"""The data of the scripts of the page of activations; maps and pictures are separate and decoded on demand."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.activations import Activations, CapturedTensor, ChannelStatistics, Histogram
from ndld_flow.report.activations.maps import PackedMap, PackedMaps, is_within_folder
from ndld_flow.report.encoding import rounded
from ndld_flow.report.value_text import shape_text


@dataclass(frozen=True)
class SampleData:
    """A sample that was run."""

    label: str
    inputs: list[tuple[str, str]]
    """Name, and where its values come from."""
    picture: int


@dataclass(frozen=True)
class RangeData:
    """The range of a tensor's values."""

    elements: int
    low: float
    high: float
    rms: float
    smallest: float
    nan: int
    inf: int
    beyond: float
    subnormal: float
    vanishing: float


@dataclass(frozen=True)
class HistogramData:
    """Counts of values in equal parts between two ends."""

    low: float
    high: float
    counts: list[int]


@dataclass(frozen=True)
class ChannelColumns:
    """Statistics of a tensor's channels."""

    number: list[int]
    minimum: list[float]
    maximum: list[float]
    mean: list[float]
    rms: list[float]
    nonfinite: list[int]
    saturated: list[int]
    difference: list[float | None]
    """RMS of the difference from the reference."""


@dataclass(frozen=True)
class TensorDistance:
    """Distance of a tensor from the reference's."""

    metrics: dict[str, float]
    nonfinite: int


@dataclass(frozen=True)
class MapData:
    """A map of a tensor: the place of its codes, and the values that they represent."""

    sample: int
    side: str
    chunk: int
    over: int
    channels: int
    numbers: list[int]
    total: int
    height: int
    width: int
    full: tuple[int, int]
    scale: int
    low: float
    high: float
    array: str


@dataclass(frozen=True)
class TensorData:
    """A captured tensor."""

    name: str
    node: str
    op: str
    position: int
    dtype: str
    reference_dtype: str
    shape: str
    layout: str
    range: RangeData
    reference_range: RangeData | None
    histogram: HistogramData | None
    reference_histogram: HistogramData | None
    saturated: int
    reference_saturated: int
    channels: ChannelColumns
    divergence: TensorDistance | None
    maps: list[MapData]


@dataclass(frozen=True)
class DrawnActivations:
    """All data of the page but the maps."""

    model: str
    reference: str
    format: str
    samples: list[SampleData]
    tensors: list[TensorData]


def activations_data(record: Activations, maps: PackedMaps, files: str) -> DrawnActivations:
    """Return all data of the page. `files` is the path of the document's files from the page."""
    divergence = {item.tensor: item for item in record.divergence}
    held: defaultdict[int, list[PackedMap]] = defaultdict(list)
    for item in maps.maps:
        held[item.tensor].append(item)
    return DrawnActivations(
        model=short_name(record.model, 60),
        reference=short_name(record.reference, 60),
        format=short_name(record.range_format, 20),
        samples=[
            SampleData(
                label=short_name(sample.label, 120),
                inputs=[
                    (short_name(name, 80), short_name(_short_path(source, sample.label), 200))
                    for name, source in sample.inputs.items()
                ],
                picture=maps.pictures.get(index, -1),
            )
            for index, sample in enumerate(record.samples)
        ],
        tensors=[
            _tensor(tensor, divergence.get(tensor.tensor), [_map(item, files) for item in held[index]])
            for index, tensor in enumerate(record.tensors)
        ],
    )


def _number(value: float) -> float:
    """Round to six significant digits; NaN and infinity stay."""
    return rounded(value, 6) if math.isfinite(value) else value


def _short_path(how: str, label: str) -> str:
    """Return the origin of values, with the path of a file as short as in the sample's label."""
    places = [place for part in label.split(", ") if part and (place := how.rfind(f"/{part}")) >= 0]
    kind = "image " if how.startswith("image ") else ""
    return f"{kind}{how[places[0] + 1 :]}" if places else how


def _tensor(tensor: CapturedTensor, divergence: LayerDivergence | None, maps: list[MapData]) -> TensorData:
    return TensorData(
        name=visible_name(tensor.tensor),
        node=visible_name(tensor.node),
        op=short_name(tensor.op_type, 60),
        position=tensor.position,
        dtype=short_name(tensor.dtype, 40),
        reference_dtype=short_name(tensor.reference_dtype, 40),
        shape=shape_text(tensor.shape),
        layout=short_name(tensor.layout, 20),
        range=_range(tensor.range),
        reference_range=_range(tensor.reference_range) if tensor.reference_range else None,
        histogram=_histogram(tensor.histogram),
        reference_histogram=_histogram(tensor.reference_histogram),
        saturated=tensor.saturated,
        reference_saturated=tensor.reference_saturated,
        channels=_channels(tensor.channels),
        divergence=TensorDistance(
            {short_name(name, 40): _number(value) for name, value in divergence.metrics.items()}, divergence.nonfinite
        )
        if divergence
        else None,
        maps=maps,
    )


def _range(values: TensorRange) -> RangeData:
    return RangeData(
        elements=values.elements,
        low=_number(values.minimum),
        high=_number(values.maximum),
        rms=_number(values.rms),
        smallest=_number(values.smallest_abs),
        nan=values.nan_count,
        inf=values.inf_count,
        beyond=_number(values.beyond_share),
        subnormal=_number(values.subnormal_share),
        vanishing=_number(values.vanishing_share),
    )


def _histogram(histogram: Histogram | None) -> HistogramData | None:
    if histogram is None or not histogram.counts:
        return None
    return HistogramData(_number(histogram.low), _number(histogram.high), list(histogram.counts))


def _channels(channels: Sequence[ChannelStatistics]) -> ChannelColumns:
    return ChannelColumns(
        number=[channel.channel for channel in channels],
        minimum=[_number(channel.minimum) for channel in channels],
        maximum=[_number(channel.maximum) for channel in channels],
        mean=[_number(channel.mean) for channel in channels],
        rms=[_number(channel.rms) for channel in channels],
        nonfinite=[channel.nonfinite for channel in channels],
        saturated=[channel.saturated for channel in channels],
        difference=[
            None if channel.difference_rms is None else _number(channel.difference_rms) for channel in channels
        ],
    )


def _map(packed_map: PackedMap, files: str) -> MapData:
    source = packed_map.source
    return MapData(
        sample=source.sample,
        side=source.side if source.side == "reference" else "candidate",
        chunk=packed_map.chunk,
        over=packed_map.over,
        channels=len(packed_map.numbers),
        numbers=list(packed_map.numbers),
        total=source.total_channels,
        height=source.height,
        width=source.width,
        full=(source.full_height, source.full_width),
        scale=source.scale,
        low=_bound(source.low),
        high=_bound(source.high),
        array=files + source.array_file if is_within_folder(source.array_file) else "",
    )


def _bound(value: float) -> float:
    """Return a bound with all digits, which the codes need; 0 for NaN."""
    return value if math.isfinite(value) else 0.0
