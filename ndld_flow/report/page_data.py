"""Types of the data that the scripts of a page read.

Python builds the data, and `encoding.packed` puts them into the page. `static/page_data.d.ts` declares the same
types to TypeScript; `python -m tests.support.page_data_types` writes it. A column is a list with an item for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypeAlias, TypedDict

TextPlace: TypeAlias = int
"""A position in the table `texts`."""
Steps: TypeAlias = int
"""The difference from the item before, the first one from 0: most are small, and pack well."""
OptionalNumber: TypeAlias = float | None
NumberText: TypeAlias = float | str | None
"""A number; a text where it is not finite."""


class RaggedColumn(TypedDict):
    """A list for each row: the lengths of all, and the items of all one after the other."""

    counts: list[int]
    places: list[Steps]


class TensorColumns(TypedDict):
    """Tensors, each once."""

    name: list[Steps]
    dtype: list[TextPlace]
    dims: list[TextPlace]
    format: NotRequired[list[TextPlace]]


class LayerColumns(TypedDict):
    """Layers in order of execution. A column in which all values are empty is left out, except the names."""

    name: list[Steps]
    index: NotRequired[list[Steps]]
    type: NotRequired[list[TextPlace]]
    provider: NotRequired[list[TextPlace]]
    dims: NotRequired[list[TextPlace]]
    role: NotRequired[list[TextPlace]]
    tactic: NotRequired[list[TextPlace]]
    precision: NotRequired[list[TextPlace]]
    input_precision: NotRequired[list[TextPlace]]
    output_precision: NotRequired[list[TextPlace]]
    precision_basis: NotRequired[list[TextPlace]]
    channels: NotRequired[list[TextPlace]]
    unit: NotRequired[list[TextPlace]]
    asked: NotRequired[list[TextPlace]]
    depth: NotRequired[list[int]]
    stream: NotRequired[list[int | None]]
    macs: NotRequired[list[int | None]]
    read_bytes: NotRequired[list[int]]
    written_bytes: NotRequired[list[int]]
    weight_bytes: NotRequired[list[int]]
    inputs: RaggedColumn
    outputs: RaggedColumn
    onnx_nodes: RaggedColumn
    median_ns: NotRequired[list[int]]
    below_ns: NotRequired[list[int]]
    above_ns: NotRequired[list[int]]


class TimelinePayload(TypedDict):
    """The spans of one pass."""

    basis: str
    lanes: list[TextPlace]
    lane: list[int]
    depth: list[int]
    kind: list[int]
    gap_ns: list[int]
    duration_ns: list[int]
    layer: list[int | None]
    name: list[TextPlace]


class RoofsPayload(TypedDict):
    """Limits of a machine."""

    bytes_per_s: float
    ceilings: dict[str, float]
    """Multiply unit of published peaks, or precision of measured ones -> multiply-accumulates per second."""


class LayersPayload(TypedDict):
    """The layers of a profile, or of an engine without times."""

    step: str
    label: str
    columns: LayerColumns
    missed: list[int]
    sum_ms: NotRequired[float]
    pass_ms: NotRequired[float]
    timeline: NotRequired[TimelinePayload | None]
    roofs: NotRequired[RoofsPayload | None]
    only_compute: NotRequired[bool]


class ProfilePayload(TypedDict):
    """The timing pass of a profile."""

    step: str
    label: str
    runs: list[list[float]]
    started_s: list[float]
    gaps_ns: list[list[int]]
    latency: Mapping[str, float]
    quartiles_ms: list[float]


class FindingsPayload(TypedDict):
    """Findings of the lint steps."""

    severity: list[TextPlace]
    check: list[TextPlace]
    node: list[TextPlace]
    op_type: list[TextPlace]
    message: list[TextPlace]
    step: list[TextPlace]


class StepLinePayload(TypedDict):
    """The errors of one output at the steps of sequences."""

    output: TextPlace
    metric: TextPlace
    errors: list[float | None]
    """The largest error of as many steps as `share`; null where none could be compared."""
    bound: float | None
    first: int | None
    """The first step beyond a bound, from 0."""
    flipped: list[int]
    """Steps, from 0, where the two models decide differently."""


class SequencePayload(TypedDict):
    """A comparison of two models over sequences."""

    share: int
    """Steps of each point."""
    steps: int
    ends: list[int]
    """Number of steps up to the end of each sequence but the last."""
    labels: list[TextPlace]
    lines: list[StepLinePayload]


class DiffPayload(TypedDict):
    """Differences between two models."""

    part: list[TextPlace]
    sign: list[TextPlace]
    name: list[TextPlace]
    was: list[TextPlace]
    kind: list[TextPlace]
    scope: list[TextPlace]
    detail: list[TextPlace]
    lines: list[list[tuple[TextPlace, int, int, int]]]
    """Label, before, after (-1 for a value that is absent), 1 for a consequence of another difference."""
    aside: list[int]


class GraphPayload(TypedDict):
    """A graph that is laid out: nodes, edges and the corners of edges."""

    width: int
    height: int
    node: tuple[int, int]
    x: list[Steps]
    y: list[Steps]
    family: list[int]
    inputs: list[str]
    outputs: list[str]
    source: list[Steps]
    target: list[Steps]
    back: list[int]
    far: list[int]
    corners: list[int]
    corner_x: list[Steps]
    corner_y: list[Steps]
    by_order: bool
    composite: NotRequired[list[int]]
    constant: NotRequired[list[int]]
    blocks: NotRequired[BlocksPayload]


class BlocksPayload(TypedDict):
    """A graph folded into blocks: the block of each node, and the graph of the blocks."""

    of: list[Steps]
    head: list[Steps]
    titles: list[str]
    graph: GraphPayload


class SearchPayload(TypedDict):
    """The trials of a precision search."""

    step: str
    metric: str
    higher: bool
    bound: OptionalNumber
    number: list[int]
    phase: list[TextPlace]
    what: list[TextPlace]
    kept: list[int]
    ranges: list[list[int] | None]
    passed: list[int]
    wall_s: list[float]
    note: list[TextPlace]
    metrics: dict[str, list[NumberText]]


class DepthBound(TypedDict):
    """An error bound."""

    error: float
    words: str


class DepthRanges(TypedDict):
    """Ranges of values, one for each layer."""

    largest_abs: list[OptionalNumber]
    smallest_abs: list[OptionalNumber]
    rms: list[OptionalNumber]
    beyond_share: list[OptionalNumber]
    subnormal_share: list[OptionalNumber]
    vanishing_share: list[OptionalNumber]
    nonfinite: list[int]


class DepthPayload(TypedDict):
    """Errors of two models layer by layer; a curve is one precision or one comparison."""

    curves: list[str]
    node: list[TextPlace]
    op_type: list[TextPlace]
    tensor: list[TextPlace]
    dims: list[TextPlace]
    position: list[Steps]
    error: list[list[OptionalNumber]]
    distance: list[list[OptionalNumber]]
    nonfinite: list[list[int]] | None
    ranges: DepthRanges | None
    kept: list[int]
    first: int | None
    bound: DepthBound | None
    precision: str
    limits: tuple[float, float, float] | None
    """The smallest subnormal, the smallest normal and the largest number of the precision."""


class ReportPayload(TypedDict):
    """All data of the report of a run or a profile."""

    profiles: list[ProfilePayload]
    layers: list[LayersPayload]
    panels: Mapping[str, object]
    """Data of the panels that have a script of their own, by the panel's name."""
    diffs: list[DiffPayload | None]
    graphs: list[GraphPayload]
    graph_of: list[int | None]
    searches: list[SearchPayload]
    depths: list[DepthPayload | None]
    tensors: TensorColumns
    texts: list[str]


class DiffPagePayload(TypedDict):
    """All data of the page of a diff."""

    diffs: list[DiffPayload]
    texts: list[str]


class SubjectPayload(TypedDict):
    """A report that takes part in a comparison."""

    letter: str
    series: int
    label: str


class MetricPayload(TypedDict):
    """A metric of all compared profiles."""

    metric: str
    key: str
    unit: str
    better: str
    values: list[OptionalNumber]
    runs: list[list[OptionalNumber]]


class VerdictColumns(TypedDict):
    """Verdicts on metrics; `metric` is a position among the metrics."""

    metric: list[int]
    base: list[int]
    candidate: list[int]
    apart: list[TextPlace]
    ratio: list[OptionalNumber]
    low: list[OptionalNumber]
    high: list[OptionalNumber]
    threshold: list[OptionalNumber]
    floor: list[OptionalNumber]
    verdict: list[TextPlace]
    why: list[TextPlace]


class ComparedLayers(TypedDict):
    """The layers of one compared profile."""

    ms: list[OptionalNumber]
    name: list[TextPlace]
    type: list[TextPlace]
    precision: list[TextPlace]
    dims: list[TextPlace]
    role: list[TextPlace]
    tactic: list[TextPlace]
    provider: list[TextPlace]
    onnx: list[list[TextPlace]]


class ComparedReport(TypedDict):
    """One compared profile."""

    label: str
    latency: Mapping[str, OptionalNumber]
    quartiles_ms: list[OptionalNumber]
    samples: list[OptionalNumber]
    sample_count: int
    started_s: list[OptionalNumber]
    sitting: str
    layers: ComparedLayers
    timeline: TimelinePayload | None


class RowColumns(TypedDict):
    """Matched layers: for each profile a column of one position or several, of methods and of confidences."""

    layers: list[list[int | Sequence[int]]]
    methods: list[list[int]]
    confidences: list[list[OptionalNumber]]


class LayerVerdictColumns(TypedDict):
    """Verdicts on rows of matched layers."""

    row: list[int]
    candidate: list[int]
    verdict: list[TextPlace]
    p_value: list[OptionalNumber]
    q_value: list[OptionalNumber]


class ComparedProfile(TypedDict):
    """Profiles of the same name in several reports."""

    name: str
    subjects: Sequence[int]
    decided_by: str
    metrics: list[MetricPayload]
    verdicts: VerdictColumns
    reports: list[ComparedReport]
    rows: RowColumns
    layer_verdicts: LayerVerdictColumns


class ComparisonPayload(TypedDict):
    """All data of the page of a comparison."""

    verdict: str
    why: str
    methods: Sequence[str]
    subjects: list[SubjectPayload]
    profiles: list[ComparedProfile]
    graphs: list[GraphPayload]
    graph_of: list[int | None]
    texts: list[str]


class AgainPayload(TypedDict):
    """A point that was measured again."""

    standing: str
    ratio: list[OptionalNumber]


class DimensionPayload(TypedDict):
    """A column over all points of a sweep; `texts` and `levels` belong to axes."""

    key: str
    label: str
    kind: str
    unit: str
    direction: str
    log: bool
    is_default: bool
    numbers: list[OptionalNumber] | None
    again: list[OptionalNumber] | None
    texts: NotRequired[list[TextPlace]]
    levels: NotRequired[list[int]]


class CurveLinePayload(TypedDict):
    """Points that differ on the axis of a curve only."""

    label: str
    rows: list[int]
    x: list[float]
    saturated: int | None


class CurvePayload(TypedDict):
    """One quantity along one axis."""

    axis: str
    dimension: int
    left_out: int
    log: bool
    lines: list[CurveLinePayload]


class SweepPayload(TypedDict):
    """All data of the page of a sweep; a row is a point."""

    id: str
    name: str
    objectives: int
    number: list[int]
    outcome: list[TextPlace]
    mark: list[TextPlace]
    reason: list[TextPlace]
    failed_step: list[TextPlace]
    report: list[TextPlace]
    lines: list[TextPlace]
    rank: list[int | None]
    sitting: list[int | None]
    wall_s: list[float]
    steps: list[list[TextPlace]]
    """Name, outcome and reason of each step, one after the other."""
    constraints: list[list[tuple[TextPlace, int, TextPlace]]]
    """Gate, 1 if it holds, measured value."""
    again: list[AgainPayload | None]
    dimensions: list[DimensionPayload]
    curves: list[CurvePayload]
    texts: list[str]


class SamplePayload(TypedDict):
    """A sample that was run; `inputs` are pairs of a name and where its values come from."""

    label: str
    inputs: list[tuple[str, str]]
    picture: int


class RangePayload(TypedDict):
    """The range of a tensor's values."""

    elements: int
    low: NumberText
    high: NumberText
    rms: NumberText
    smallest: NumberText
    nan: int
    inf: int
    beyond: NumberText
    subnormal: NumberText
    vanishing: NumberText


class HistogramPayload(TypedDict):
    """Counts of values in equal parts between two ends."""

    low: NumberText
    high: NumberText
    counts: list[int]


class ChannelColumns(TypedDict):
    """Statistics of a tensor's channels."""

    number: list[int]
    minimum: list[NumberText]
    maximum: list[NumberText]
    mean: list[NumberText]
    rms: list[NumberText]
    nonfinite: list[int]
    saturated: list[int]
    difference: list[NumberText]


class TensorDivergence(TypedDict):
    """Distance of a tensor from the reference's."""

    metrics: dict[str, NumberText]
    nonfinite: int


class MapPayload(TypedDict):
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


class TensorPayload(TypedDict):
    """A captured tensor."""

    name: str
    node: str
    op: str
    position: int
    dtype: str
    reference_dtype: str
    shape: str
    layout: str
    range: RangePayload
    reference_range: RangePayload | None
    histogram: HistogramPayload | None
    reference_histogram: HistogramPayload | None
    saturated: int
    reference_saturated: int
    channel_count: int
    channels_by: str
    channels: ChannelColumns
    divergence: TensorDivergence | None
    maps: list[MapPayload]


class ActivationsPayload(TypedDict):
    """All data of the page of activations."""

    model: str
    reference: str
    format: str
    samples: list[SamplePayload]
    tensors: list[TensorPayload]


class ModelNodes(TypedDict):
    """The nodes of a model; `inputs`, `outputs` and `outside` are positions of tensors, `bodies` of scopes."""

    name: list[TextPlace]
    operator: list[TextPlace]
    details: list[TextPlace]
    precision: list[TextPlace]
    doc: list[TextPlace]
    inputs: list[Sequence[int]]
    outputs: list[Sequence[int]]
    outside: list[Sequence[int]]
    bodies: list[Sequence[int]]
    attributes: list[list[int]]
    """Name, type, value, 1 for a default, position of a held tensor: one attribute after the other."""
    metadata: list[list[TextPlace]]


class ModelTensors(TypedDict):
    """The tensors of a model."""

    name: list[TextPlace]
    dtype: list[TextPlace]
    dims: list[TextPlace]
    label: list[TextPlace]
    kind: list[int]
    held: list[Steps]


class HeldPayload(TypedDict):
    """A tensor that the model's file holds. Either its numbers are there, or why they are not."""

    dtype: str
    dims: str
    elements: int
    bytes: int
    first: list[str]
    where: str
    unread: NotRequired[str]
    range: NotRequired[list[OptionalNumber]]
    counts: NotRequired[list[int]]
    histogram: NotRequired[Sequence[int]]


class ScopePayload(TypedDict):
    """A graph of a model: the main one, a body or a local function."""

    address: str
    parent: int
    first: int
    terminals: list[int]
    doc: str
    graph: GraphPayload


class ModelPayload(TypedDict):
    """All data of the page of a model."""

    shown: int
    scopes: list[ScopePayload]
    nodes: ModelNodes
    tensors: ModelTensors
    held: list[HeldPayload]
    texts: list[str]
