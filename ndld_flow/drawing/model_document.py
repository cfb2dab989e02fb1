"""A model prepared for a page: every graph with its nodes, tensors and values.

Parts refer to each other by their positions in the document's tuples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ndld_flow.drawing.graph import Family, NodeKind
from ndld_flow.records.inspection import Numbers

TensorKind = Literal["computed", "input", "initializer", "constant"]
NONE = -1
"""The position of something absent: an omitted optional input, a tensor without a producer."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor stored in the model."""

    dtype: str
    dims: str
    elements: int
    size_bytes: int
    numbers: Numbers | None
    unread: str
    """Reason why there are no statistics."""
    first: tuple[str, ...]
    """The first elements, as text."""
    where: str = ""
    """External file that contains the data; empty if it is in the model's own file."""


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A value of a graph."""

    name: str
    dtype: str
    dims: str
    label: str
    """Its dimensions, long names shortened."""
    kind: TensorKind
    held: int = NONE
    """Position in `ModelDocument.held`."""


@dataclass(frozen=True, slots=True)
class ModelAttribute:
    """An attribute of a node."""

    name: str
    type: str
    text: str
    """Its value; the beginning of a long one."""
    is_default: bool = False
    """True if the model omits the attribute and this is the operator's default."""
    held: int = NONE
    """Position in `ModelDocument.held`, if the value is a tensor."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node of a graph."""

    name: str
    operator: str
    """`Conv`, or `domain::Name`."""
    family: Family
    kind: NodeKind
    scope: int
    """The graph that contains it."""
    details: str
    """Its main attributes in a few words: `3x3, stride 2`."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of enclosing graphs that its bodies read."""
    attributes: tuple[ModelAttribute, ...]
    bodies: tuple[int, ...]
    """Graphs that it contains."""
    precision: str = ""
    """Requested precision."""
    metadata: tuple[tuple[str, str], ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelScope:
    """A graph: the main one, a body, a local function."""

    address: str
    parent: int
    """The enclosing graph; `NONE` for the main graph and for functions."""
    inputs: tuple[int, ...]
    outside: tuple[int, ...]
    """Tensors of enclosing graphs that it reads."""
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ModelOperator:
    """An operator that the model uses."""

    name: str
    family: Family
    uses: int
    version: str
    """`version 13`, or another description."""
    summary: str


@dataclass(frozen=True)
class ModelDocument:
    """The contents of a model's page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """(name, value): IR version, opsets, producer, ..."""
    scopes: tuple[ModelScope, ...]
    """The main graph first."""
    nodes: tuple[ModelNode, ...]
    tensors: tuple[ModelTensor, ...]
    held: tuple[HeldTensor, ...]
    operators: tuple[ModelOperator, ...]
    """The most frequent first."""
    shown: int = 0
    """The scope shown first."""
    has_values: bool = True
    """False if values were omitted."""
