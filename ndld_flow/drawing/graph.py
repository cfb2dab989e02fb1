"""A graph that is to be drawn, and where its parts come to lie. Lengths are in pixels at scale 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["operator", "composite", "input", "output", "constant"]
"""`composite` stands for a graph of its own: If, Loop, Scan, a local function."""

Point = tuple[float, float]
"""x to the right, y down."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node as a person sees it."""

    id: str
    """Its name in the model; need not be unique."""
    label: str
    family: str = "other"
    """One of `families.FAMILIES`; gives the colour."""
    kind: NodeKind = "operator"
    details: tuple[str, ...] = ()
    """Short lines below the label, such as `3x3, stride 2`."""


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One tensor on its way from one node to another; both are positions in `DrawnGraph.nodes`."""

    source: int
    target: int
    label: str = ""
    """Dtype and shape, as far as they are known."""
    tensor: str = ""
    """Edges of one node that carry the same tensor leave it together."""


@dataclass(frozen=True)
class DrawnGraph:
    """Nodes and edges, in the order of the model."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    title: str = ""
    subtitle: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Route:
    """The way of one edge, from the border of its source to the border of its target.

    Two points that differ in x and in y are joined by a curve that leaves and arrives in the direction of the layers;
    all others by a straight line.
    """

    points: tuple[Point, ...]
    back: bool = False
    """True where it runs against the direction of the layers: it closes a circle."""
    far: bool = False
    """True where it has no way of its own and passes behind nodes: there are too many such long edges."""


@dataclass(frozen=True)
class Layout:
    """Where everything lies: one box for each node, one route for each edge, in their order."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
