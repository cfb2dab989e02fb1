"""Pictures as a list of shapes, and as a self-contained SVG without style sheets, scripts or references."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.text import shortened
from ndld_flow.drawing.graph import FAMILIES, Point

_NEUTRAL = "#c9cdd2"

PALETTES: dict[str, tuple[str, ...]] = {
    # Paul Tol's light scheme, designed for cells with dark text.
    "tol": (
        "#77aadd",
        "#ee8866",
        "#bbcc33",
        "#44bb99",
        "#eedd88",
        _NEUTRAL,
        "#99ddff",
        "#ffaabb",
        "#aaaa00",
        "#e6e7e6",
    ),
    # Okabe and Ito's palette, the most common one, lightened by a third for text on it.
    "okabe-ito": (
        "#56b4e9",
        "#e69f00",
        "#f0e442",
        "#37b592",
        "#f2d49b",
        _NEUTRAL,
        "#a9d8f4",
        "#d894bd",
        "#e58a4d",
        "#e6e7e6",
    ),
    # For print: only prominent families are dark.
    "grey": (
        "#9a9a9a",
        "#b2b2b2",
        "#e2e2e2",
        "#d0d0d0",
        "#ececec",
        "#f7f7f7",
        "#dadada",
        "#c2c2c2",
        "#bcbcbc",
        "#f7f7f7",
    ),
}
"""Palette name -> one colour for each of `FAMILIES`."""

BACKGROUNDS = {"white": "#ffffff", "dark": "#15171a", "transparent": None}


@dataclass(frozen=True)
class Colours:
    """Every colour of one picture."""

    background: str | None
    """None for a transparent one."""
    ink: str
    quiet: str
    edge: str
    grid: str
    border: str
    paper: str
    """Fill of inputs and outputs."""
    families: tuple[str, ...]
    on_family: str
    """Colour of text on a family's fill."""

    def family(self, name: str) -> str:
        """Return the fill of a family; unknown names count as `other`."""
        places = {family: index for index, family in enumerate(FAMILIES)}
        return self.families[places.get(name, len(FAMILIES) - 1)]  # type: ignore[call-overload]


def colours_for(background: str, palette: str) -> Colours:
    """Return colours on `white`, `dark`, `transparent` or `#rrggbb`. Raises `RequestError` for anything else."""
    if palette not in PALETTES:
        raise UnknownNameError(f"there is no palette {palette!r}", palette, PALETTES)
    paper = _background(background)
    fills = PALETTES[palette]
    if _lightness(paper or "#ffffff") > 0.3:
        light = mix(paper or "#ffffff", "#ffffff", 0.6)
        return Colours(paper, "#1a1c1f", "#5c636b", "#8b929a", "#0000001a", "#00000059", light, fills, "#1a1c1f")
    assert paper is not None
    dark = tuple(_darkened(fill, paper) for fill in fills)
    return Colours(
        paper, "#e6e7e8", "#9aa2ab", "#737b85", "#ffffff14", "#ffffff4d", mix(paper, "#ffffff", 0.08), dark, "#ffffff"
    )


def _background(text: str) -> str | None:
    if text in BACKGROUNDS:
        return BACKGROUNDS[text]
    short = re.fullmatch(r"#([0-9a-fA-F])([0-9a-fA-F])([0-9a-fA-F])", text)
    if short:
        return "#" + "".join(digit * 2 for digit in short.groups()).lower()
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise RequestError(f"background {text!r}: give white, dark, transparent, or a colour such as #f7f7f5.")
    return text.lower()


def parts(colour: str) -> tuple[int, int, int, int]:
    """Return red, green, blue and opacity, 0 to 255, of `#rrggbb` or `#rrggbbaa`."""
    red, green, blue, *rest = bytes.fromhex(colour[1:])
    return red, green, blue, rest[0] if rest else 255


def mix(colour: str, other: str, part: float) -> str:
    """Return the first colour mixed with a share (`part`, 0 to 1) of the other."""
    pairs = zip(parts(colour)[:3], parts(other)[:3], strict=True)
    return "#" + "".join(f"{round(first + (second - first) * part):02x}" for first, second in pairs)


def _darkened(fill: str, paper: str) -> str:
    """Return a fill mixed with a dark background until white text on it has a contrast of 4.5, as WCAG AA requires."""
    steps = (mix(fill, paper, step / 20) for step in range(8, 20))
    return next((colour for colour in steps if 1.05 / (_lightness(colour) + 0.05) > 4.6), paper)


def _lightness(colour: str) -> float:
    """Return the approximate relative luminance as defined by WCAG."""
    weights = (0.2126, 0.7152, 0.0722)
    return sum(weight * math.pow(value / 255, 2.2) for weight, value in zip(weights, parts(colour)[:3], strict=True))


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
            corner = (x1, y1)
            pieces.append((_towards(corner, points[number]),))
            pieces.append((corner, corner, _towards(corner, points[number + 2])))
        else:
            pieces.append(((x1, y1),))
    return tuple(pieces)


def _turns(before: Point, corner: Point, after: Point) -> bool:
    """Return whether two straight pieces meet at a right angle."""
    (x0, y0), (x, y), (x1, y1) = before, corner, after
    return (x0 == x and y1 == y and y0 != y and x1 != x) or (y0 == y and x1 == x and x0 != x and y1 != y)


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
    """Return at most `limit` characters on one line, shortened in the middle; unprintable ones become a replacement
    character.

    Characters that change the writing direction count as unprintable, so that a name cannot reorder the text next to
    it.
    """
    text = shortened(text, limit)
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def svg_text(picture: Picture, scale: float = 1.0) -> str:
    """Return the text of the SVG file. Equal pictures give equal text."""
    return "\n".join(_elements(picture, scale)) + "\n"


def _elements(picture: Picture, scale: float) -> Iterator[str]:
    width, height = _number(picture.width), _number(picture.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_number(picture.width * scale)}" '
        f'height="{_number(picture.height * scale)}" viewBox="0 0 {width} {height}" '
        f"font-family={quoteattr(_FONT)}>"
    )
    if picture.title:
        yield f"<title>{escape(picture.title)}</title>"
    if picture.background:
        yield f'<rect width="{width}" height="{height}" fill="{picture.background}"/>'
    for lines in (picture.grid, picture.lines):
        yield from _lines(lines)
    for shape in picture.shapes:
        yield _rectangle(shape) if isinstance(shape, Rectangle) else _text(shape)
    yield "</svg>"


def _lines(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines, grouped by style, and their arrowheads."""
    for (stroke, width, dashed), group in groupby(lines, key=lambda line: (line.stroke, line.width, line.dashed)):
        members = list(group)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        yield f'<g fill="none"{_paint("stroke", stroke)} stroke-width="{_number(width)}"{dash}>'
        for line in members:
            pieces = (f"{'L' if len(piece) == 1 else 'C'}{' '.join(map(_point, piece))}" for piece in line.pieces)
            yield f'<path d="M{_point(line.start)}{"".join(pieces)}"/>'
        yield "</g>"
        heads = [f"M{'L'.join(map(_point, arrow_corners(line)))}Z" for line in members if line.arrow]
        if heads:
            yield f'<path{_paint("fill", stroke)} d="{"".join(heads)}"/>'


def arrow_corners(line: Line) -> tuple[tuple[float, float], ...]:
    """Return the three corners of a line's arrowhead."""
    assert line.arrow is not None
    (x, y), (dx, dy) = line.pieces[-1][-1], line.arrow
    return (x, y), (x - 6 * dx - 3 * dy, y - 6 * dy + 3 * dx), (x - 6 * dx + 3 * dy, y - 6 * dy - 3 * dx)


def _rectangle(box: Rectangle) -> str:
    place = f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" height="{_number(box.height)}"'
    fill = _paint("fill", box.fill or "none")
    stroke = _paint("stroke", box.stroke) if box.stroke else ""
    dash = ' stroke-dasharray="3 2"' if box.dashed else ""
    start = f'<rect {place} rx="{_number(box.radius)}"{fill}{stroke}{dash}'
    return f"{start}><title>{escape(box.title)}</title></rect>" if box.title else f"{start}/>"


def _text(text: Text) -> str:
    anchor = ' text-anchor="middle"' if text.anchor == "middle" else ""
    weight = ' font-weight="600"' if text.bold else ""
    place = f'x="{_number(text.x)}" y="{_number(text.y)}" font-size="{_number(text.size)}"'
    return f"<text {place}{_paint('fill', text.colour)}{anchor}{weight}>{escape(text.text)}</text>"


def _paint(name: str, colour: str) -> str:
    """Return the attributes of a colour. SVG 1.1 does not support `#rrggbbaa`; opacity is a separate attribute."""
    if len(colour) != 9:
        return f' {name}="{colour}"'
    return f' {name}="{colour[:7]}" {name}-opacity="{parts(colour)[3] / 255:.2g}"'


def _point(point: tuple[float, float]) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
