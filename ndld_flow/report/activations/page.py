"""The page of captured activations: overview, table of tensors, and the page in the step's folder."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from ndld_flow.base.quantities import MINUS, count, number, share
from ndld_flow.base.text import first_of, short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.activations import Activations, CapturedTensor, ChannelStatistics, Histogram
from ndld_flow.records.run_folder import STORED
from ndld_flow.report.activations.maps import PackedMap, PackedMaps, is_within_folder, pack_maps, read_activations
from ndld_flow.report.encoding import Columns, rounded
from ndld_flow.report.measured import Figure, shape_text
from ndld_flow.report.noted_failures import page_with_notes
from ndld_flow.report.render import PageParts, render, write_page
from ndld_flow.report.tables import Column, Table

Verdict = Literal["passed", "failed", "info"]

_TENSORS_SHOWN = 300
"""Rows of the table for paper and for pages without a script."""
_STEEP_DB = 10.0
"""Fall of the signal to noise from which the result names its place."""
_ROUNDED_DB = 60.0
"""Signal to noise of values that are rounded to fp16 once."""
_UNBOUNDED_DB = 300.0
"""Signal to noise above which both sides count as equal."""


def tensor_table(record: Activations) -> Table:
    """Return the first captured tensors, in execution order."""
    divergence = {layer.tensor: layer for layer in record.divergence}
    kind = short_name(record.range_format, 20)
    columns = (
        Column("Tensor", "name"),
        Column("Operator"),
        Column("Type"),
        *(Column(title, "number", number) for title in ("Min", "Max", "RMS")),
        *([Column("Signal to noise", "number", snr_words)] if record.reference else []),
        Column("Issues"),
    )
    rows = (
        (
            short_name(tensor.tensor),
            short_name(tensor.op_type, 60),
            f"{short_name(tensor.dtype, 40)} {shape_text(tensor.shape)} {short_name(tensor.layout, 20)}",
            tensor.range.minimum,
            tensor.range.maximum,
            tensor.range.rms,
            *([snr_db(divergence.get(tensor.tensor))] if record.reference else []),
            ", ".join(troubles(tensor, kind)),
        )
        for tensor in record.tensors[:_TENSORS_SHOWN]
    )
    return Table(columns, tuple(rows))


def snr_db(divergence: LayerDivergence | None) -> float | None:
    """Return the signal to noise in dB; None if not measured or NaN."""
    value = None if divergence is None else divergence.metrics.get("snr_db")
    return None if value is None or math.isnan(value) else value


def snr_words(value: float) -> str:
    """Return `61.2 dB`, or `equal` without noise."""
    if value >= _UNBOUNDED_DB:
        return "equal"
    size = "∞" if value <= -_UNBOUNDED_DB else f"{abs(value):.1f}"
    return f"{MINUS if value < 0 else ''}{size} dB"


def troubles(tensor: CapturedTensor, range_format: str) -> Iterator[str]:
    """Yield the problems of a tensor's values, the worst first."""
    values = tensor.range
    if values.nan_count:
        yield f"{count(values.nan_count)} NaN"
    if values.inf_count:
        yield f"{count(values.inf_count)} infinite"
    if values.beyond_share:
        yield f"{_share(values.beyond_share)} beyond {range_format}"
    if tensor.saturated:
        yield f"{_share(tensor.saturated / max(values.elements, 1))} saturated"
    if values.vanishing_share:
        yield f"{_share(values.vanishing_share)} rounded to 0 in {range_format}"


def _share(fraction: float) -> str:
    return share(fraction) if fraction >= 0.0005 else "< 0.1 %"


_ARITHMETIC = {
    "stored": "stored: fp16 and bf16 tensors are rounded to their type after every node, and computed in fp32 "
    "in between, as on GPUs",
    "native": "native: computed as the execution provider does; on the CPU, ONNX Runtime computes fp16 in fp32 and "
    "hides the errors of a GPU",
}


@dataclass(frozen=True)
class SampleData:
    """A sample that was run."""

    label: str
    inputs: list[tuple[str, str]]
    """Name, and where its values come from."""
    picture: int


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
    range: TensorRange
    reference_range: TensorRange | None
    histogram: Histogram | None
    reference_histogram: Histogram | None
    saturated: int
    reference_saturated: int
    channels: Columns[ChannelStatistics]
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
        range=tensor.range,
        reference_range=tensor.reference_range,
        histogram=tensor.histogram if tensor.histogram.counts else None,
        reference_histogram=other if (other := tensor.reference_histogram) and other.counts else None,
        saturated=tensor.saturated,
        reference_saturated=tensor.reference_saturated,
        channels=Columns(ChannelStatistics, tensor.channels),
        divergence=TensorDistance(
            {
                short_name(name, 40): rounded(value, 6) if math.isfinite(value) else value
                for name, value in divergence.metrics.items()
            },
            divergence.nonfinite,
        )
        if divergence
        else None,
        maps=maps,
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


@dataclass(frozen=True)
class ActivationsPage:
    """The page of one document."""

    title: str
    verdict: Verdict
    result: str
    arithmetic: str
    ran: tuple[tuple[str, str], ...]
    """(name, value) of the conditions of the run."""
    figures: tuple[Figure, ...]
    tensors: Table
    notes: tuple[str, ...]
    chunks: tuple[str, ...]
    data: DrawnActivations

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title)"""
        return (("depth", "Depth"), ("inspect", "Inspect")) if self.data.tensors else ()


def collect_page(record: Activations, maps: PackedMaps, files: str) -> ActivationsPage:
    """Convert a record and its packed maps to page data. `files` is the path of the record's files from the page."""
    conditions = {"On": record.provider, "Noise": record.noise, "Stopped at": record.stopped_at}
    return ActivationsPage(
        title=title_of(record),
        verdict=verdict_of(record),
        result=result_of(record),
        arithmetic=_ARITHMETIC.get(record.arithmetic, short_name(record.arithmetic, 80)),
        ran=tuple((name, short_name(value, 300)) for name, value in conditions.items() if value),
        figures=figures(record),
        tensors=tensor_table(record),
        notes=tuple(short_name(note, 600) for note in (*record.notes, *maps.notes)),
        chunks=tuple(maps.chunks),
        data=activations_data(record, maps, files),
    )


def title_of(record: Activations) -> str:
    """Return `half against source`."""
    model, reference = short_name(record.model, 80), short_name(record.reference, 80)
    return f"{model} against {reference}" if reference else model


def not_finite(record: Activations) -> list[CapturedTensor]:
    """Return the tensors with NaN or infinity, in execution order."""
    return [tensor for tensor in record.tensors if tensor.range.nan_count or tensor.range.inf_count]


def verdict_of(record: Activations) -> Verdict:
    """Return `failed` with NaN or infinity, or if some noise exceeds its signal, and `passed` only if nothing differs
    from a reference; a smaller difference is a fact, which other checks judge.
    """
    far = _furthest(record)
    if not_finite(record) or (far is not None and far[0] <= 0):
        return "failed"
    equal = not record.reference if far is None else far[0] >= _UNBOUNDED_DB
    return "passed" if record.tensors and equal else "info"


def result_of(record: Activations) -> str:
    """Return the result in a few words: NaN and infinity, otherwise the furthest tensor from the reference's."""
    if not record.tensors:
        return "No tensor was captured"
    bad, total, far = len(not_finite(record)), len(record.tensors), _furthest(record)
    if bad:
        return f"{count(bad)} of {count(total)} tensors {'has' if bad == 1 else 'have'} NaN or infinity"
    if far is None:
        return "Every captured value is finite" + ("; none was compared" if record.reference else "")
    db, tensor = far
    if db >= _UNBOUNDED_DB:
        return f"Equal to {short_name(record.reference, 80)} in every compared tensor"
    where = f"{short_name(record.reference, 80)} in {short_name(tensor, 60)}"
    words = f"Furthest from {where}: signal to noise {snr_words(db)}"
    before, after, steepest = _steepest(record) or (db, db, "")
    if steepest == tensor or min(before, _ROUNDED_DB) - after < _STEEP_DB:
        return words
    return f"{words}; it falls most at {short_name(steepest, 60)}, from {snr_words(before)} to {snr_words(after)}"


def figures(record: Activations) -> tuple[Figure, ...]:
    """Return the figures of the overview."""
    labels = [short_name(sample.label, 40) for sample in record.samples]
    far = _furthest(record)
    bad = not_finite(record)
    first = record.first_nonfinite or (bad[0].tensor if bad else "")
    beyond = [tensor for tensor in record.tensors if tensor.range.beyond_share]
    beyond.sort(key=lambda tensor: -tensor.range.beyond_share)
    kind = short_name(record.range_format, 20)
    if not first:
        nonfinite = Figure("Not finite", "0", "no NaN, no infinity")
    else:
        nonfinite = _about("Not finite", count(len(bad)), "first", first)
    return (
        Figure("Tensors", count(len(record.tensors)), "captured, in execution order"),
        Figure("Samples", count(len(labels)), first_of(labels, 3)),
        nonfinite,
        *([_about(f"Beyond {kind}", count(len(beyond)), "most", beyond[0].tensor)] if beyond else []),
        *([] if far is None else [_about("Lowest signal to noise", snr_words(far[0]), "at", far[1])]),
    )


def _furthest(record: Activations) -> tuple[float, str] | None:
    """Return the lowest signal to noise in dB and its tensor; None if nothing was compared."""
    known = {tensor.tensor for tensor in record.tensors}
    measured = ((snr_db(layer), layer.tensor) for layer in record.divergence if layer.tensor in known)
    return min(((db, tensor) for db, tensor in measured if db is not None), default=None)


def _steepest(record: Activations) -> tuple[float, float, str] | None:
    """Return the largest fall between compared tensors that follow each other: both ends in dB, and its tensor.

    The first rounding is no fall: before it nothing differs.
    """
    measured = [(db, layer.tensor) for layer in record.divergence if (db := snr_db(layer)) is not None]
    falls = ((before, after, tensor) for (before, _), (after, tensor) in pairwise(measured))
    return max(falls, key=lambda fall: min(fall[0], _ROUNDED_DB) - fall[1], default=None)


def _about(heading: str, figure: str, words: str, tensor: str) -> Figure:
    link = f"#tensor={quote(visible_name(tensor), safe='')}"  # its maps, on its page
    return Figure(heading, figure, words, tensor=short_name(tensor, 60), link=link)


PAGE = "activations.html"
"""File name of the page in its step's folder."""

ACTIVATIONS_PAGE = PageParts("activations", "charts tables activations")


def draw_activations(folder: Path, kept: Path | None = None) -> Path:
    """Write `activations.html` into a step's folder atomically and return its path.

    `kept` is the folder of the document and its files; by default the folder itself or the store behind its link.
    Raises a `RequestError` if there is no readable document, and an `OutputsError` if the page cannot be
    written.
    """
    here = (folder / Activations.file_name).is_file()
    source = kept or (folder if here else folder / STORED)
    record = read_activations(source)
    text = page_with_notes(
        "The page of activations",
        lambda: render(ACTIVATIONS_PAGE, collect_page(record, pack_maps(record, source), "" if here else f"{STORED}/")),
    )
    return write_page(folder / PAGE, text, "ndld-flow report")
