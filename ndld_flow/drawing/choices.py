"""What a person can choose about a drawing."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.drawing.layout import Direction


@dataclass(frozen=True)
class Reading:
    """What of a model is drawn."""

    constants: bool = False
    """Draw constants and initializers too."""
    shapes: bool = True
    """Write dtype and shape at the edges."""
    depth: int = 0
    """Draw the bodies of control flow and functions in their places, so many levels deep."""
    subgraph: str = ""
    """Draw only the body of this node or function; `node/attribute` for one of several."""
    values: bool = True
    """What tensors hold; without them, weights and constants are told by dtype and shape only."""
    title: str = ""
    """The model's file name where it is empty."""


@dataclass(frozen=True)
class Look:
    """How it is drawn."""

    background: str = "white"
    """`white`, `dark`, `transparent`, or a colour such as `#f7f7f5`."""
    palette: str = "tol"
    """One of `palettes.PALETTES`."""
    direction: Direction = "down"
    columns: bool = True
    """Set a long graph in columns; else it is one strip."""
    grid: bool = False
    legend: bool = True
    """Title and legend."""
    scale: float = 1.0
    """Pixels for each unit: 1 is 96 dpi."""
