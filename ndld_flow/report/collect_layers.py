"""Layers of each profiled model, with their times, groups, reformats and diagnosis."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ndld_flow.base.quantities import milliseconds, share, size
from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.profiles.diagnose.diagnose import LayerGroup, bound_of, group_layers, insights_of
from ndld_flow.profiles.diagnose.lints.tensor_cores import channels_of
from ndld_flow.profiles.diagnose.published_peaks import LayerPeaks
from ndld_flow.profiles.diagnose.subject import Bound, Insight, Subject, is_applied, is_product, missed_precisions
from ndld_flow.records.profile import Layer, Profile, Span, TensorInfo
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.collect_footprint import FootprintView, collect_footprint
from ndld_flow.report.measured import UNKNOWN, profile_titles, shape_text, short_provider
from ndld_flow.report.tables import Column, Table, Value, without_empty_columns

# Maximum number of rows that a link selects, to limit the size of pages.
_LAYERS_LINKED = 500


Passage = tuple[str, bool]
"""A piece of text, and whether it is code."""


@dataclass(frozen=True)
class InsightView:
    """One finding."""

    score: float
    """Estimated saving as a share of the latency, 0 to 1."""
    title: str
    evidence: tuple[Passage, ...]
    next_step: tuple[Passage, ...]
    layers: tuple[int, ...]
    """Positions to select, the longest first."""
    layer_count: int
    """Number of layers, including those without a link."""
    within: str = ""
    """Title of a finding about these layers and others, which counts the same time; empty if there is none."""
    command: str = ""
    """The command that writes the suggestion into the recipe of the run, and measures it; empty if there is none."""


def collect_diagnosis(
    subject: Subject, step: str = "", run: RunRecord | None = None
) -> tuple[Bound, tuple[InsightView, ...]]:
    """Return the bottleneck of a profile and its findings, those that may save most first.

    `step` of `run` measured it; without a run, there is no recipe that could be changed.
    """
    bound, views, found = bound_of(subject), [], insights_of(subject)
    for insight in found:
        offered = run is not None and insight.change is not None and not is_applied(insight.change, run, step)
        command = f"ndld-flow apply {run.id}:{step} {insight.name}" if offered and run is not None else ""
        own = frozenset(insight.layers)
        within = next((other.title for other in found if other.score and own and own < frozenset(other.layers)), "")
        views.append(replace(insight_view(insight), within=visible_text(within), command=visible_text(command)))
    return bound, tuple(views)


def insight_view(insight: Insight) -> InsightView:
    """Return a finding with shortened texts."""
    return InsightView(
        score=insight.score,
        title=visible_text(insight.title),
        evidence=passages(insight.evidence),
        next_step=passages(insight.next_step),
        layers=insight.layers[:_LAYERS_LINKED],
        layer_count=len(insight.layers),
    )


_CODE = re.compile(r"`([^`]*)`|(?<![\w-])(--[a-z][\w-]*)")


def passages(text: str) -> tuple[Passage, ...]:
    """Split ``Run `sanitize` with --all`` into `Run `, code `sanitize`, ` with `, code `--all`."""
    return tuple((part, index % 3 > 0) for index, part in enumerate(_CODE.split(visible_text(text))) if part)


_SHOWN = 40


@dataclass(frozen=True)
class ReformatRow:
    """One layer that reformats."""

    position: int
    name: str
    tensor: str
    """Its input tensor, or the output if the input is not recorded."""
    dims: str
    before: str
    """Type and format of the input, `float32 linear`; empty if not recorded, as in `after`."""
    after: str
    bound_to: str
    """The engine's input or output that it reads or writes, `input x`; empty for one between layers."""
    cause: str
    """The neighbours whose types or formats differ; empty if they are not recorded."""


@dataclass(frozen=True)
class ReformatsView:
    """All reformats of one engine."""

    count: int
    ways: tuple[tuple[str, str, int], ...]
    """(before, after, number), the most frequent first."""
    rows: tuple[ReformatRow, ...]
    """The first reformats in execution order; those at inputs and outputs come first."""


def collect_reformats(
    layers: Sequence[Layer], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> ReformatsView | None:
    """Return the reformats; None if there are none."""
    bound = {output.name: f"output {short_name(output.name, 60)}" for output in outputs if output.name}
    bound |= {tensor.name: f"input {short_name(tensor.name, 60)}" for tensor in inputs if tensor.name}
    neighbours = _Neighbours(layers, bound)
    rows = [
        _reformat_row(index, layer, neighbours) for index, layer in enumerate(layers) if layer.purpose == "reformat"
    ]
    if not rows:
        return None
    ways = Counter((row.before, row.after) for row in rows)
    return ReformatsView(
        count=len(rows),
        ways=tuple((*way, count) for way, count in ways.most_common()),
        rows=tuple(sorted(rows, key=lambda row: not row.bound_to)[:_SHOWN]),
    )


class _Neighbours:
    """The layers around each tensor of an engine."""

    def __init__(self, layers: Sequence[Layer], bound: Mapping[str, str]) -> None:
        self.bound = bound
        self._makers = {tensor.name: layer for layer in layers for tensor in layer.outputs if tensor.name}
        self._readers: dict[str, list[Layer]] = defaultdict(list)
        for layer in layers:
            for tensor in layer.inputs:
                if tensor.name:
                    self._readers[tensor.name].append(layer)

    def cause(self, layer: Layer, before: str, after: str) -> str:
        """Return `Conv_0 writes float16 hwc8, Conv_1 reads float16 chw16`; empty if a side is not recorded."""
        if not layer.inputs or not layer.outputs or not before or not after:
            return ""
        read, written = layer.inputs[0].name, layer.outputs[0].name
        maker = self._makers.get(read)
        readers = list(dict.fromkeys(short_name(each.name, 60) for each in self._readers.get(written, ())))
        source = f"the engine's {self.bound[read]} is" if read in self.bound else ""
        source = source or (f"{short_name(maker.name, 60)} writes" if maker is not None else "")
        more = f" and {len(readers) - 1} more read" if len(readers) > 1 else " reads"
        target = f"{readers[0]}{more}" if readers else ""
        target = target or (f"the engine's {self.bound[written]} is" if written in self.bound else "")
        return f"{source} {before}, {target} {after}" if source and target else ""


def _reformat_row(index: int, layer: Layer, neighbours: _Neighbours) -> ReformatRow:
    bound = neighbours.bound
    read = layer.inputs[0] if layer.inputs else None
    written = layer.outputs[0] if layer.outputs else None
    shown = read or written
    ends = [tensor.name for tensor in (read, written) if tensor is not None]
    return ReformatRow(
        position=index,
        name=short_name(layer.name),
        tensor=short_name(shown.name) if shown else "",
        dims=shape_text(shown.shape) if shown and shown.shape else "",
        before=_kind(read),
        after=_kind(written),
        bound_to=next((bound[name] for name in ends if name in bound), ""),
        cause=neighbours.cause(layer, _kind(read), _kind(written)),
    )


def _kind(tensor: TensorInfo | None) -> str:
    return short_name(f"{tensor.dtype} {tensor.format}".strip(), 60) if tensor else ""


@dataclass(frozen=True)
class LaneView:
    """Description of one lane."""

    name: str
    spans: int
    busy_ms: float
    """Total time of its outermost spans."""
    overhead_ms: float
    longest: str
    longest_ms: float


@dataclass(frozen=True)
class TimelineView:
    """One pass of one profile."""

    basis: str
    length_ms: float
    lanes: tuple[LaneView, ...]
    """In order of their first span."""
    rows: int
    """Number of rows of the picture: one per depth of each lane."""


def collect_timeline(profile: Profile) -> TimelineView | None:
    """Return the timeline; None if the profile has none."""
    if not profile.timeline:
        return None
    lanes: dict[str, list[Span]] = {}
    for span in profile.timeline:
        lanes.setdefault(span.lane, []).append(span)
    return TimelineView(
        basis=short_name(profile.timeline_basis, 400),
        length_ms=max(span.start_ms + span.duration_ms for span in profile.timeline),
        rows=len({(span.lane, span.depth) for span in profile.timeline}),
        lanes=tuple(_lane(name, spans) for name, spans in lanes.items()),
    )


def _lane(name: str, spans: Sequence[Span]) -> LaneView:
    work = [span for span in spans if span.kind != "pass"] or spans
    longest = max(work, key=lambda span: span.duration_ms)
    top = min(span.depth for span in work)
    return LaneView(
        name=short_name(name),
        spans=len(spans),
        busy_ms=sum(span.duration_ms for span in work if span.depth == top),
        overhead_ms=sum(span.duration_ms for span in work if span.kind == "overhead"),
        longest=short_name(longest.name, 80),
        longest_ms=longest.duration_ms,
    )


_REQUESTED = Column("Requested", "label")
_COLUMNS = (
    Column("#", "number"),
    Column("Name", "name"),
    Column("Type", "label"),
    Column("Dims", "label"),
    Column("Weights", "number", size),
    Column("Provider", "label"),
    Column("Precision", "label"),
    Column("Reads → writes", "label"),
    Column("Multiply unit", "label"),
    _REQUESTED,
    Column("ONNX nodes", "number"),
    Column("%", "number", share),
    Column("Median", "number", milliseconds),
)
"""Columns of layers, the same in a report and in Markdown."""
_MOVING_ROLES = ("reformat", "cast", "quantize", "copy")
ROWS_WITHOUT_SCRIPT = 20
_TOP = 10


@dataclass(frozen=True)
class LayerTimes:
    """Times of all layers, in execution order."""

    median_ms: tuple[float, ...]
    min_ms: tuple[float, ...]
    max_ms: tuple[float, ...]
    sum_ms: float
    """Sum of all medians."""


@dataclass(frozen=True)
class LayersView:
    """The layers of one profile. Times are over the passes of the layer pass."""

    profile: Profile
    step: str
    label: str
    times: LayerTimes
    explained: str
    """`13.4 % of the latency of 20.8 ms`; empty if layers take longer or the latency was not measured."""
    pass_ms: float
    """Median duration of the layer pass, with the profiler on."""
    passes: int
    runs: int
    """Number of process runs of the passes."""
    types: tuple[LayerGroup, ...]
    """The longest first."""
    precisions: tuple[LayerGroup, ...]
    units: tuple[LayerGroup, ...]
    """By multiply unit; empty if none is known."""
    movers: tuple[LayerGroup, ...]
    """Layers without computation, by role."""
    missed: tuple[int, ...]
    """Positions of layers without the requested precision."""
    tactics: tuple[LayerGroup, ...]
    reformats: ReformatsView | None
    footprint: FootprintView | None
    timeline: TimelineView | None
    bound: Bound
    insights: tuple[InsightView, ...]
    has_work: bool
    """True if the work of some layers is known."""
    peaks: LayerPeaks
    roofs: str
    """Origin of the roofs, or the reason why there are none."""
    only_compute: bool
    """True if the table first shows only layers that compute."""
    slowest: Table
    """The slowest layers, for paper and for pages without a script."""
    top: tuple[int, ...]
    """Positions of the slowest layers, for the first screen."""

    @property
    def moving_ms(self) -> float:
        """Total time of layers without computation."""
        return sum(group.sum_ms for group in self.movers)


def collect_layers(profiles: dict[str, Profile], run: RunRecord | None = None) -> tuple[LayersView, ...]:
    """Return the layers of every profile with timed layers; `run` measured them."""
    titles = profile_titles(profiles)
    return tuple(
        _view(step, titles[step], profile, run) for step, profile in profiles.items() if has_timed_layers(profile)
    )


def has_timed_layers(profile: Profile) -> bool:
    """Return whether some layers were timed; those of an engine that was not run are not."""
    return any(layer.samples_ms for layer in profile.layers)


def _view(step: str, title: str, profile: Profile, run: RunRecord | None) -> LayersView:
    layers = profile.layers
    subject = Subject(profile)
    medians = subject.medians_ms
    passes = max(len(layer.samples_ms) for layer in layers)
    times = LayerTimes(
        median_ms=medians,
        min_ms=tuple(min(layer.samples_ms, default=0.0) for layer in layers),
        max_ms=tuple(max(layer.samples_ms, default=0.0) for layer in layers),
        sum_ms=sum(medians),
    )
    bound, insights = collect_diagnosis(subject, step, run)
    missed = missed_precisions(profile)
    has_units = knows_units(layers)
    latency_ms = profile.latency.median_ms if profile.latency_ms else 0.0
    explained = f"{share(times.sum_ms / latency_ms)} of the latency of {milliseconds(latency_ms)}" if latency_ms else ""
    roles = group_layers(subject, lambda layer: layer.purpose)
    tactics = group_layers(subject, lambda layer: visible_name(layer.tactic))
    return LayersView(
        profile=profile,
        step=visible_name(step),
        label=title,
        times=times,
        explained=explained if 0 < times.sum_ms < latency_ms else "",
        pass_ms=statistics.median(profile.layer_pass_ms) if profile.layer_pass_ms else 0.0,
        passes=passes,
        runs=max(len(profile.layer_runs), 1),
        types=group_layers(subject, lambda layer: visible_name(layer.type)),
        precisions=group_layers(subject, lambda layer: visible_name(layer.precision or UNKNOWN)),
        units=group_layers(subject, lambda layer: visible_name(layer.unit or UNKNOWN)) if has_units else (),
        movers=tuple(group for group in roles if group.name in _MOVING_ROLES),
        missed=missed,
        tactics=tuple(group for group in tactics if group.name),
        reformats=collect_reformats(layers, profile.inputs, profile.outputs),
        footprint=collect_footprint(profile),
        timeline=collect_timeline(profile),
        bound=bound,
        insights=insights,
        has_work=any(layer.macs for layer in layers),
        peaks=subject.peaks,
        roofs=subject.peaks.doubt or f"roofs: {short_name(subject.peaks.how, 200)}",
        only_compute=profile.options.get("hide_non_compute") is True,
        slowest=layer_table(profile, subject.listed[:ROWS_WITHOUT_SCRIPT], missed, medians),
        top=tuple(subject.listed[:_TOP]),
    )


def knows_units(layers: Sequence[Layer]) -> bool:
    """Return True if the multiply unit of some layer is known; ONNX Runtime does not name kernels."""
    return any(layer.unit not in ("", "none") for layer in layers)


def computing_name(layer: Layer) -> str:
    """Return `Conv_9 + Relu_11`, the nodes that compute, for a layer whose name begins with weights and quantizers."""
    nodes = [name for name in layer.onnx_nodes if "quantizelinear" not in name.lower()]
    is_quantized = layer.role == "compute" and 0 < len(nodes) < len(layer.onnx_nodes)
    return " + ".join(nodes) if is_quantized else layer.name


def types_text(layer: Layer) -> str:
    """Return input and output types, `int8 + float16 → float16`; empty if all equal the type of the computation."""
    types = (layer.input_precision, layer.output_precision)
    return "" if set(types) <= {layer.precision, ""} else visible_name(" → ".join(type_ or UNKNOWN for type_ in types))


def channels_text(layer: Layer) -> str:
    """Return `30 → 64; misaligned for tensor cores: 30 input channels (multiples of 8)`; empty unless a dense
    product."""
    channels = channels_of(layer) if is_product(layer) else None
    if channels is None:
        return ""
    odd = f"; misaligned for tensor cores: {' and '.join(channels.odd)}" if channels.odd else ""
    return f"{channels.inputs} → {channels.outputs}{odd}"


def layer_table(
    profile: Profile, places: Sequence[int], missed: Collection[int], medians_ms: Sequence[float] = ()
) -> Table:
    """Return the layers at these places. Columns in which all are empty are left out.

    `missed` are the places of layers without the requested precision. `medians_ms` are those of all layers, empty for
    an engine that was not run.
    """
    total = sum(medians_ms)
    units = knows_units(profile.layers)
    rows: list[tuple[Value, ...]] = []
    for index in places:
        layer = profile.layers[index]
        cells = (
            layer.index,
            visible_name(layer.name),
            visible_name(layer.type),
            shape_text(layer.outputs[0].shape) if layer.outputs else "",
            layer.weight_bytes or None,
            short_provider(layer.provider) if layer.provider else "",
            visible_name(layer.precision or UNKNOWN),
            types_text(layer),
            (layer.unit or UNKNOWN) if units else "",
            ("≠ " if index in missed else "") + visible_name(layer.asked_precision),
            None if medians_ms else len(layer.onnx_nodes),
            medians_ms[index] / total if total else None,
            medians_ms[index] if medians_ms else None,
        )
        rows.append(cells)
    table = without_empty_columns(_COLUMNS, rows)
    bad = {(row, table.columns.index(_REQUESTED)) for row, index in enumerate(places) if index in missed}
    return replace(table, bad=frozenset(bad))
