"""The choices of a drawing: its contents and its appearance."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.drawing.layout import Direction


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
