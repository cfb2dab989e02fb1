"""A picture as a list of shapes, before it is written as SVG or rasterised."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, TypeAlias

from ndld_flow.base.text import shortened
from ndld_flow.drawing.graph import Point

Anchor = Literal["start", "middle"]
_CORNER = 7.0
"""Radius of a line's corners."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A box with rounded corners."""

    x: float
    y: float
    width: float
    height: float
    radius: float
    fill: str | None
    stroke: str | None = None
    dashed: bool = False
    title: str = ""
    """Tooltip text."""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text, `y` its baseline."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    bold: bool = False
    anchor: Anchor = "middle"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of straight pieces and curves, with an optional arrowhead at its end."""

    start: Point
    pieces: tuple[Piece, ...]
    stroke: str
    width: float = 1.3
    dashed: bool = False
    arrow: Point | None = None
    """Direction of the arrowhead: one of x and y is 0, the other 1 or -1."""


Piece: TypeAlias = "tuple[Point] | tuple[Point, Point, Point]"
"""The end of a straight piece, or two control points and the end of a cubic curve."""


@dataclass
class Picture:
    """Shapes in painting order."""

    width: float
    height: float
    background: str | None
    title: str = ""
    grid: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    shapes: list[Rectangle | Text] = field(default_factory=list)


def pieces_of(points: tuple[Point, ...], upright: bool) -> tuple[Piece, ...]:
    """Return the pieces of a route with rounded right angles; `upright` is True if layers run downward."""
    pieces: list[Piece] = []
    for number, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        if x0 != x1 and y0 != y1:
            middle: Point = ((x0 + x1) / 2, (y0 + y1) / 2)
            first, second = ((x0, middle[1]), (x1, middle[1])) if upright else ((middle[0], y0), (middle[0], y1))
            pieces.append((first, second, (x1, y1)))
        elif number + 2 < len(points) and _turns(points[number], (x1, y1), points[number + 2]):
            pieces.extend(_rounded(points[number], (x1, y1), points[number + 2]))
        else:
            pieces.append(((x1, y1),))
    return tuple(pieces)


def _turns(before: Point, corner: Point, after: Point) -> bool:
    """Return whether two straight pieces meet at a right angle."""
    (x0, y0), (x, y), (x1, y1) = before, corner, after
    return (x0 == x and y1 == y and y0 != y and x1 != x) or (y0 == y and x1 == x and x0 != x and y1 != y)


def _rounded(before: Point, corner: Point, after: Point) -> tuple[Piece, ...]:
    start, end = _towards(corner, before), _towards(corner, after)
    return (start,), (corner, corner, end)


def _towards(corner: Point, other: Point) -> Point:
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    part = min(_CORNER, length / 2) / length
    return corner[0] + dx * part, corner[1] + dy * part


_NARROW = frozenset("iljtfrI.,:;|!'`()[]{}/\\ 1-")
_WIDE = frozenset("mwMW@%&")


@lru_cache(maxsize=65536)
def text_width(text: str, size: float) -> float:
    """Return the approximate width in pixels, based on the wider common sans-serif fonts; the viewer's font is
    unknown."""
    return size * sum(map(_em, text))


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.37
    if letter in _WIDE:
        return 0.92
    if letter.isascii():
        return 0.68 if letter.isupper() else 0.59
    return 1.05 if unicodedata.east_asian_width(letter) in "WF" else 0.66


def shown(text: str, limit: int) -> str:
    """Return at most `limit` characters on one line, with the middle left out; unprintable ones become a replacement
    mark.

    Marks that change the writing direction count as unprintable, so that a name cannot reorder the text next to it.
    """
    text = shortened(text, limit)
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)
