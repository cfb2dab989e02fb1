"""Graphs to draw, the choices of a drawing, and layouts. Lengths are in pixels at scale 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["operator", "composite", "input", "output", "constant"]
"""`composite` nodes contain a graph: If, Loop, Scan, a local function."""

Point = tuple[float, float]
"""x to the right, y down."""


Direction = Literal["down", "right"]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node as it is drawn."""

    id: str
    """Its name in the model; need not be unique."""
    label: str
    family: str = "other"
    """One of `families.FAMILIES`; selects the colour."""
    kind: NodeKind = "operator"
    details: tuple[str, ...] = ()
    """Short lines below the label, such as `3x3, stride 2`."""


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One tensor between two nodes, given as positions in `DrawnGraph.nodes`."""

    source: int
    target: int
    label: str = ""
    """Dtype and shape, if known."""
    tensor: str = ""
    """Name of the tensor; edges of one node with the same tensor share a trunk."""


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
    """The route of one edge, from the border of its source to the border of its target.

    Consecutive points that differ in both x and y are joined by a curve that leaves and arrives in the direction of the
    layers, all others by a straight line.
    """

    points: tuple[Point, ...]
    back: bool = False
    """True if the edge runs against the direction of the layers: it closes a cycle."""
    far: bool = False
    """True if the edge has no separate route and passes behind nodes, because there are too many long edges."""


@dataclass(frozen=True)
class Layout:
    """Positions of a graph: one box per node and one route per edge, in their order."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Reading:
    """The parts of a model that are drawn."""

    constants: bool = False
    """Draw constants and initializers too."""
    shapes: bool = True
    """Write dtype and shape at the edges."""
    depth: int = 0
    """Levels of control flow and functions whose bodies are drawn in place."""
    subgraph: str = ""
    """Draw only the body of this node or function; `node/attribute` for one of several."""
    values: bool = True
    """Include the values of tensors; without them, weights and constants show dtype and shape only."""
    title: str = ""
    """Title of the drawing; the model's file name if empty."""


@dataclass(frozen=True)
class Look:
    """The appearance of a drawing."""

    background: str = "white"
    """`white`, `dark`, `transparent`, or a colour such as `#f7f7f5`."""
    palette: str = "tol"
    """One of `palettes.PALETTES`."""
    direction: Direction = "down"
    columns: bool = True
    """Break a long graph into columns; otherwise it is one strip."""
    grid: bool = False
    legend: bool = True
    """Draw the title and the legend."""
    scale: float = 1.0
    """Pixels per unit; 1 is 96 dpi."""
