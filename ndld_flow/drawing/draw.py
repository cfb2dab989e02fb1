"""Draw a graph as a picture file: boxes, labels, title and legend as shapes, written as SVG, PNG or JPEG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import number
from ndld_flow.drawing.graph import FAMILIES, TITLES, Box, Direction, DrawnGraph, DrawnNode, Layout, Look, Point, Route
from ndld_flow.drawing.layout import Extent, lay_out
from ndld_flow.drawing.picture import (
    Colours,
    Line,
    Picture,
    Rectangle,
    Text,
    colours_for,
    pieces_of,
    shown,
    svg_text,
    text_width,
)
from ndld_flow.drawing.raster import raster_bytes

_LABEL, _DETAIL, _EDGE = 13.0, 10.5, 10.0
"""Font sizes."""
_PAD_X, _PAD_Y = 12.0, 7.0
_MARGIN = 28.0
_BEHIND = 4.0
"""Offset of the second sheet behind a composite node."""
_GRID = 24.0
_MOST_LETTERS = 34
_MOST_TITLE = 90
_MOST_TOOLTIP = 400


@dataclass(frozen=True)
class Style:
    """The appearance of a picture."""

    colours: Colours
    direction: Direction = "down"
    aspect: float | None = 1.6
    """Target width over height for long graphs, which are broken into columns; None for one strip."""
    grid: bool = False
    legend: bool = True
    """Draw the title and the legend."""


def compose(graph: DrawnGraph, style: Style) -> Picture:
    """Lay a graph out and return the shapes to paint."""
    labels = _labels_of(graph)
    extents = [_extent(node, labels[index], style.direction) for index, node in enumerate(graph.nodes)]
    edges = [(edge.source, edge.target) for edge in graph.edges]
    layout = lay_out(extents, edges, [edge.tensor for edge in graph.edges], style.direction, style.aspect)
    return _Composer(graph, layout, labels, style).picture()


def _labels_of(graph: DrawnGraph) -> list[str]:
    """Return the text at the output of each node: every distinct edge label once."""
    labels: list[dict[str, None]] = [{} for _ in graph.nodes]
    for edge in graph.edges:
        if edge.label:
            labels[edge.source][edge.label] = None
    return [shown(" | ".join(label), 2 * _MOST_LETTERS) for label in labels]


def _extent(node: DrawnNode, label: str, direction: Direction) -> Extent:
    lines = [text_width(shown(node.label, _MOST_LETTERS), _LABEL) * 1.06]
    lines += [text_width(shown(detail, _MOST_LETTERS), _DETAIL) for detail in node.details]
    width = max(max(lines) + 2 * _PAD_X, 44.0)
    height = 2 * _PAD_Y + _LABEL + len(node.details) * (_DETAIL + 3)
    if not label:
        return Extent(round(width), round(height))
    wide = text_width(label, _EDGE) + 8
    behind = _BEHIND if node.kind == "composite" else 0.0
    tail, breadth = (_EDGE + 5 + behind, wide) if direction == "down" else (wide + behind, _EDGE + 4)
    return Extent(round(width), round(height), round(tail), round(breadth))


class _Composer:
    def __init__(self, graph: DrawnGraph, layout: Layout, labels: list[str], style: Style) -> None:
        self.graph = graph
        self.layout = layout
        self.labels = labels
        self.style = style
        self.colours = style.colours
        self.left = _MARGIN
        self.top = _MARGIN

    def picture(self) -> Picture:
        head = list(self._head()) if self.style.legend else []
        ends = [shape.x + text_width(shape.text, shape.size) for shape in head if isinstance(shape, Text)]
        width = max(self.layout.width, max(ends, default=0.0) - _MARGIN) + 2 * _MARGIN
        height = self.layout.height + self.top + _MARGIN
        picture = Picture(width, height, self.colours.background, shown(self.graph.title, _MOST_TOOLTIP))
        if self.style.grid:
            picture.grid = list(self._grid(width, height))
        picture.lines = [self._line(route) for route in self.layout.routes if len(route.points) > 1]
        picture.shapes = head
        for node, box, label in zip(self.graph.nodes, self.layout.boxes, self.labels, strict=True):
            moved = Box(box.x + self.left, box.y + self.top, box.width, box.height)
            picture.shapes += self._node(node, moved, label)
        return picture

    def _head(self) -> Iterator[Rectangle | Text]:
        """Yield title, subtitle and legend, and move the graph down to make room."""
        colours = self.colours
        if self.graph.title:
            self.top += 16
            yield Text(_MARGIN, self.top, shown(self.graph.title, _MOST_TITLE), 17, colours.ink, True, "start")
            self.top += 8
        if self.graph.subtitle:
            self.top += 12
            yield Text(_MARGIN, self.top, shown(self.graph.subtitle, 320), 12, colours.quiet, False, "start")
            self.top += 8
        yield from self._legend()
        self.top += 26

    def _legend(self) -> Iterator[Rectangle | Text]:
        counts = Counter(node.family for node in self.graph.nodes if node.kind in ("operator", "composite"))
        x = start = _MARGIN
        right = max(self.layout.width + _MARGIN, 640.0)
        self.top += 10
        for family in FAMILIES:
            if not counts[family]:
                continue
            text = f"{TITLES[family]} {counts[family]:,}"
            wide = 20 + text_width(text, 11) + 14
            if x > start and x + wide > right:
                x, self.top = start, self.top + 20
            yield Rectangle(x, self.top, 13, 13, 3, self.colours.family(family), self.colours.border)
            yield Text(x + 19, self.top + 10.5, text, 11, self.colours.quiet, False, "start")
            x += wide
        self.top += 13

    def _grid(self, width: float, height: float) -> Iterator[Line]:
        for line in range(1, int(width // _GRID) + 1):
            yield Line((line * _GRID, 0), (((line * _GRID, height),),), self.colours.grid, 1)
        for line in range(1, int(height // _GRID) + 1):
            yield Line((0, line * _GRID), (((width, line * _GRID),),), self.colours.grid, 1)

    def _line(self, route: Route) -> Line:
        points = tuple((x + self.left, y + self.top) for x, y in route.points)
        pieces = pieces_of(points, self.style.direction == "down")
        return Line(
            points[0], pieces, self.colours.edge, dashed=route.back or route.far, arrow=_heading(points, self.style)
        )

    def _node(self, node: DrawnNode, box: Box, label: str) -> Iterator[Rectangle | Text]:
        colours, terminal = self.colours, node.kind in ("input", "output")
        fill = colours.paper if terminal or node.kind == "constant" else colours.family(node.family)
        ink = colours.ink if terminal or node.kind == "constant" else colours.on_family
        radius = box.height / 2 if terminal else 2.0 if node.kind == "constant" else 6.0
        if node.kind == "composite":  # a second sheet shows that the node contains a graph
            yield Rectangle(box.x + _BEHIND, box.y + _BEHIND, box.width, box.height, radius, fill, colours.border)
        title = shown(node.id, _MOST_TOOLTIP)
        border = colours.ink if terminal else colours.border
        yield Rectangle(
            box.x, box.y, box.width, box.height, radius, fill, border, dashed=node.kind == "constant", title=title
        )
        middle = box.x + box.width / 2
        y = box.y + _PAD_Y + _LABEL - 2
        yield Text(middle, y, shown(node.label, _MOST_LETTERS), _LABEL, ink, bold=not terminal)
        for detail in node.details:
            y += _DETAIL + 3
            yield Text(middle, y, shown(detail, _MOST_LETTERS), _DETAIL, ink)
        if label:
            yield self._edge_label(box, label, _BEHIND if node.kind == "composite" else 0.0)

    def _edge_label(self, box: Box, label: str, lower: float) -> Text:
        if self.style.direction == "down":
            return Text(
                box.x + box.width / 2, box.y + box.height + _EDGE + 1.5 + lower, label, _EDGE, self.colours.quiet
            )
        y = box.y + box.height / 2 + _EDGE / 3
        return Text(box.x + box.width + 4 + lower, y, label, _EDGE, self.colours.quiet, anchor="start")


def _heading(points: tuple[Point, ...], style: Style) -> Point:
    """Return the direction of a line at its end; curves arrive in the direction of the layers."""
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = x1 - x0, y1 - y0
    if (dx and dy and style.direction == "down") or not dx:
        return 0.0, 1.0 if dy > 0 else -1.0
    return 1.0 if dx > 0 else -1.0, 0.0


FORMATS = {".svg": "SVG", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_ASPECT = 1.6
"""Width over height, similar to a screen."""
_LARGEST_SCALE = 20.0


def check_look(suffix: str, look: Look) -> None:
    """Raise `RequestError` for an impossible format, background or scale, before a model is read."""
    if suffix.lower() not in FORMATS:
        raise RequestError(
            f"a picture cannot be written as {suffix or 'a file without suffix'!r}: "
            f"end its name with one of {', '.join(FORMATS)}, or .html for a page."
        )
    if FORMATS[suffix.lower()] == "JPEG" and look.background == "transparent":
        raise RequestError("JPEG does not support transparency: choose another background, or write a .png.")
    if not 0 < look.scale <= _LARGEST_SCALE:
        raise RequestError(f"scale {number(look.scale)}: must be above 0 and at most {_LARGEST_SCALE:.0f}.")
    colours_for(look.background, look.palette)


def picture_bytes(graph: DrawnGraph, suffix: str, look: Look) -> bytes:
    """Return the file's bytes for a suffix of `FORMATS`. Raises `RequestError` as `check_look` does, and for too many
    pixels.
    """
    check_look(suffix, look)
    colours = colours_for(look.background, look.palette)
    style = Style(colours, look.direction, _ASPECT if look.columns else None, look.grid, look.legend)
    picture = compose(graph, style)
    file_format = FORMATS[suffix.lower()]
    if file_format == "SVG":
        return svg_text(picture, look.scale).encode()
    return raster_bytes(picture, file_format, look.scale)
