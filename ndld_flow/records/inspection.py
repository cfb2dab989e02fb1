"""What a person looks up in a model: the whole of it in brief, its nodes, its tensors, its weights."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.base import Record

Dims = tuple[int | str | None, ...]
Role = Literal["input", "output", "initializer", "constant", "tensor"]
Stored = Literal["inline", "external", "sparse"]


class Port(Record):
    """A tensor that a node reads or makes."""

    name: str
    """Empty for an input or output that is left out."""
    dtype: str = ""
    """`float32`; what is no dense tensor as ONNX writes it, such as `seq(tensor(float))`; empty where not known."""
    shape: Dims | None = None
    """None where it is not known."""
    made_by: str = ""
    """The node that makes it, or `input`, `initializer`."""
    read_by: tuple[str, ...] = ()
    """The nodes that read it; `output` where it is one of its graph."""


class InspectedNode(Record):
    """A node."""

    scope: str
    """Address of its graph: `""` is the main one, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    name: str
    """Its first output where it has none."""
    op_type: str
    """`Conv`, or `com.microsoft::FusedConv` for other domains."""
    attributes: dict[str, str]
    """As people write them."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    precision: str = ""
    """The precision it was asked to have."""
    subgraphs: tuple[str, ...] = ()
    """Addresses of its bodies."""


class Numbers(Record):
    """Of all elements of one tensor. NaN and infinities are counted and else left out."""

    minimum: int | float | None
    maximum: int | float | None
    mean: float | None
    std: float | None
    nans: int
    infinities: int
    zeros: int
    histogram: tuple[int, ...] = ()
    """Counts in equal parts of minimum to maximum."""


class InspectedTensor(Port):
    """A tensor; of those that the model holds, what is in them."""

    scope: str
    role: Role
    elements: int | None = None
    """Of an initializer or Constant node, as are all below."""
    size_bytes: int | None = None
    stored: Stored | None = None
    file: str = ""
    """The data file it lies in."""
    offset: int | None = None
    numbers: Numbers | None = None
    """Only where it was asked for."""
    unread: str = ""
    """Why there are no numbers though they were asked for."""
    first: tuple[int | float | str, ...] = ()
    """Its first elements, where they were asked for."""


class WeightGroup(Record):
    """Initializers and Constant nodes of one kind."""

    count: int
    elements: int
    size_bytes: int


class NodeGroup(Record):
    """Nodes that have something in common."""

    value: str
    count: int
    op_types: dict[str, int]
    """Operator -> how many, most first."""


class DataFileEntry(Record):
    """A file of external data."""

    location: str
    size_bytes: int
    tensors: int


class ModelSummary(Record):
    """A model in brief."""

    ir_version: int
    opsets: dict[str, int]
    """Domain -> version; ONNX's own is `ai.onnx`."""
    producer: str
    graph_name: str
    metadata: dict[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    node_count: int
    nodes_by_type: dict[str, int]
    """Subgraphs and functions included, most first."""
    weights_by_dtype: dict[str, WeightGroup]
    largest: tuple[InspectedTensor, ...]
    subgraphs: tuple[str, ...]
    functions: tuple[str, ...]
    nodes_by_graph: dict[str, int]
    """Address of a subgraph or function -> how many nodes stand in it, without those of subgraphs in it."""
    precisions: dict[str, int]
    """Precision that nodes were asked to have -> how many."""
    files: tuple[DataFileEntry, ...]
    """External data."""


class Inspection(Record):
    """What was asked for; the rest is None."""

    model: str
    summary: ModelSummary | None = None
    nodes: tuple[InspectedNode, ...] | None = None
    tensors: tuple[InspectedTensor, ...] | None = None
    groups: tuple[NodeGroup, ...] | None = None
    weights: dict[str, WeightGroup] | None = None
    """Initializers and Constant nodes by dtype."""
