"""A model as a page shows it: every graph with its nodes, tensors and what they hold.

One part names another by its position in the document's tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ndld_flow.drawing.families import Family
from ndld_flow.drawing.graph import NodeKind

TensorKind = Literal["computed", "input", "initializer", "constant"]
NONE = -1
"""The position of nothing: an optional input that is not given, a tensor that no node makes."""


@dataclass(frozen=True, slots=True)
class HeldNumbers:
    """What the numbers of a tensor are like; as `Numbers` of the backend that read them."""

    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    nans: int
    infinities: int
    zeros: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that the model's file holds."""

    dtype: str
    dims: str
    elements: int
    size_bytes: int
    numbers: HeldNumbers | None
    unread: str
    """Why there are no numbers."""
    first: tuple[str, ...]
    """The first elements, as text."""
    where: str = ""
    """The file that its data lie in; empty for the model's own."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A value of a graph."""

    name: str
    dtype: str
    dims: str
    label: str
    """Its dims with short names for long dimensions."""
    kind: TensorKind
    held: int = NONE
    """Position in `ModelDocument.held`."""


@dataclass(frozen=True, slots=True)
class ModelAttribute:
    """An attribute of a node."""

    name: str
    type: str
    text: str
    """Its value; of a long one, the beginning."""
    is_default: bool = False
    """Not given in the model: this is what the operator takes then."""
    held: int = NONE
    """Of a tensor, its position in `ModelDocument.held`."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node of a graph."""

    name: str
    operator: str
    """`Conv`, or `domain::Name`."""
    family: Family
    kind: NodeKind
    scope: int
    """The graph it stands in."""
    details: str
    """What matters about it in a few words: `3x3, stride 2`."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of graphs around it that its bodies read."""
    attributes: tuple[ModelAttribute, ...]
    bodies: tuple[int, ...]
    """Graphs that it opens into."""
    precision: str = ""
    """What it was asked to compute in."""
    metadata: tuple[tuple[str, str], ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelScope:
    """A graph: the main one, a body, a local function."""

    address: str
    parent: int
    """The graph that it is a body in; `NONE` for the main graph and for functions."""
    inputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of graphs around it that it reads."""
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelOperator:
    """What is known of an operator that the model uses."""

    name: str
    family: Family
    uses: int
    version: str
    """`version 13`, or what else it is."""
    summary: str


@dataclass(frozen=True)
class ModelDocument:
    """All of a model that a page shows."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """(what, value): IR version, opsets, producer, ..."""
    scopes: tuple[ModelScope, ...]
    """The main graph first."""
    nodes: tuple[ModelNode, ...]
    tensors: tuple[ModelTensor, ...]
    held: tuple[HeldTensor, ...]
    operators: tuple[ModelOperator, ...]
    """The most frequent first."""
    shown: int = 0
    """The scope that the page opens with."""
    has_values: bool = True
    """False where values were left out."""
