"""Write a picture as a self-contained SVG without style sheets, scripts or references, which all viewers show alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from ndld_flow.drawing.palettes import parts
from ndld_flow.drawing.picture import Line, Picture, Rectangle, Text

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
        yield from (f'<path d="{_path(line)}"/>' for line in members)
        yield "</g>"
        heads = [f"M{'L'.join(map(_point, arrow_corners(line)))}Z" for line in members if line.arrow]
        if heads:
            yield f'<path{_paint("fill", stroke)} d="{"".join(heads)}"/>'


def _path(line: Line) -> str:
    drawn = [f"M{_point(line.start)}"]
    for piece in line.pieces:
        drawn.append(f"{'L' if len(piece) == 1 else 'C'}{' '.join(map(_point, piece))}")
    return "".join(drawn)


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
