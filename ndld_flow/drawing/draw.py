"""Draw a graph as a picture file: boxes, labels, title and legend as shapes, written as SVG, PNG or JPEG."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

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
    arrow_corners,
    colours_for,
    parts,
    pieces_of,
    shown,
    svg_text,
    text_width,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont


MOST_PIXELS = 100_000_000
"""Maximum size: about 300 MB while it is written. Few programs open larger pictures."""
_FINER = 2
"""Supersampling factor; Pillow does not antialias lines."""
_STRIP = 512
_CURVE_STEPS = 12


def raster_bytes(picture: Picture, file_format: str, scale: float = 1.0) -> bytes:
    """Return the bytes of a `PNG` or `JPEG` file, with `scale` pixels per unit of the picture.

    Raises `RequestError` for a picture of more than `MOST_PIXELS`.
    """
    from PIL import Image

    width, height = round(picture.width * scale), round(picture.height * scale)
    if width < 1 or height < 1:
        raise RequestError("the picture would have no pixels: give a larger --scale.")
    # The maximum side of a JPEG; few programs show a larger PNG.
    if width * height > MOST_PIXELS or max(width, height) > 65_000:
        fitting = min((MOST_PIXELS / width / height) ** 0.5, 65_000 / max(width, height))
        raise RequestError(
            f"the picture would have {width:,} x {height:,} pixels, more than most programs can open: write an .svg, "
            f"draw a part with --subgraph, or give a --scale below {fitting:.2g} times this one."
        )
    transparent = picture.background is None and file_format == "PNG"
    mode = "RGBA" if transparent else "RGB"
    whole = Image.new(mode, (width, height))
    painter = _Painter(picture, scale * _FINER, mode)
    for top in range(0, height, _STRIP):
        high = min(_STRIP, height - top)
        strip = painter.strip(width * _FINER, top * _FINER, high * _FINER)
        whole.paste(strip.reduce(_FINER), (0, top))
    buffer = io.BytesIO()
    # Faster compression of a large PNG: half the time for a fifth more bytes.
    png: dict[str, object] = {"optimize": True} if width * height < 4_000_000 else {"compress_level": 3}
    options = {"quality": 92} if file_format == "JPEG" else png
    whole.save(buffer, file_format, dpi=(96 * scale, 96 * scale), **options)
    return buffer.getvalue()


class _Painter:
    """Paints strips of a picture. Shapes are assigned to the strips that they touch."""

    def __init__(self, picture: Picture, scale: float, mode: str) -> None:
        self.scale = scale
        self.mode = mode
        self.background = picture.background or ("#ffffff" if mode == "RGB" else None)
        self.shapes = [(*_ends(shape), shape) for shape in (*picture.grid, *picture.lines, *picture.shapes)]
        self.flattened: dict[int, tuple[Point, ...]] = {}

    def strip(self, width: int, top: int, height: int) -> Image:
        from PIL import Image, ImageDraw

        empty = parts(self.background)[:3] if self.background else (255, 255, 255, 0)
        image = Image.new(self.mode, (width, height), empty)
        # In "RGBA" mode Pillow blends translucent colours instead of replacing the pixels below.
        draw = ImageDraw.Draw(image, "RGBA" if self.mode == "RGB" else None)
        low, high = top / self.scale, (top + height) / self.scale
        for first, last, shape in self.shapes:
            if first > high or last < low:
                continue
            if isinstance(shape, Line):
                self._line(draw, shape, top)
            elif isinstance(shape, Rectangle):
                self._rectangle(draw, shape, top)
            else:
                self._text(draw, shape, top)
        return image

    def _at(self, point: Point, top: int) -> Point:
        return point[0] * self.scale, point[1] * self.scale - top

    def _line(self, draw: ImageDraw, line: Line, top: int) -> None:
        # A line between columns crosses every strip.
        flat = self.flattened.get(id(line)) or self.flattened.setdefault(id(line), tuple(_flattened(line)))
        points = [self._at(point, top) for point in flat]
        width = max(1, round(line.width * self.scale))
        colour = parts(line.stroke)
        if line.dashed:
            for start, end in _dashes(points, 5 * self.scale, 4 * self.scale):
                draw.line([start, end], colour, width)
        else:
            draw.line(points, colour, width, joint="curve")
        if line.arrow:
            draw.polygon([self._at(corner, top) for corner in arrow_corners(line)], colour)

    def _rectangle(self, draw: ImageDraw, box: Rectangle, top: int) -> None:
        x, y = self._at((box.x, box.y), top)
        corners = (x, y, x + box.width * self.scale, y + box.height * self.scale)
        draw.rounded_rectangle(
            corners,
            min(box.radius, box.height / 2) * self.scale,
            parts(box.fill) if box.fill else None,
            parts(box.stroke) if box.stroke else None,
            max(1, round(self.scale)),
        )

    def _text(self, draw: ImageDraw, text: Text, top: int) -> None:
        size = text.size * self.scale
        if size < 2 or not text.text:
            return
        letters, left, above = _letters(text.text, size, text.bold, "ms" if text.anchor == "middle" else "ls")
        x, y = self._at((text.x, text.y), top)
        draw.bitmap((round(x) + left, round(y) + above), letters, parts(text.colour))


@lru_cache(maxsize=4096)
def _letters(text: str, size: float, bold: bool, anchor: str) -> tuple[Image, int, int]:
    """Return text as a mask, with the offset of its upper left corner from the anchor. Cached: graphs repeat their
    texts.
    """
    from PIL import Image, ImageDraw

    font = _font(size, bold)
    left, top, right, bottom = font.getbbox(text, anchor=anchor)
    mask = Image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font, anchor)
    return mask, int(left), int(top)


@lru_cache(maxsize=32)
def _font(size: float, bold: bool) -> FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib; otherwise Pillow's built-in font, which is mostly ASCII."""
    from PIL import ImageFont

    spec = find_spec("matplotlib")  # its fonts without importing it, which takes 0.4 s
    fonts = Path((spec and spec.origin) or "").parent / "mpl-data" / "fonts" / "ttf"
    file = fonts / f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    font = ImageFont.truetype(file, size) if file.is_file() else ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _ends(shape: Line | Rectangle | Text) -> tuple[float, float]:
    """Return the upper and lower end of a shape, with a margin."""
    if isinstance(shape, Line):
        heights = [shape.start[1], *(point[1] for piece in shape.pieces for point in piece)]
        return min(heights) - 8, max(heights) + 8
    if isinstance(shape, Rectangle):
        return shape.y - 2, shape.y + shape.height + 2
    return shape.y - 2 * shape.size, shape.y + shape.size


def _flattened(line: Line) -> Iterator[Point]:
    at = line.start
    yield at
    for piece in line.pieces:
        if len(piece) == 1:
            at = piece[0]
            yield at
            continue
        handles = (at, *piece)
        for step in range(1, _CURVE_STEPS + 1):
            part = step / _CURVE_STEPS
            rest = 1 - part
            weights = (rest**3, 3 * rest * rest * part, 3 * rest * part * part, part**3)
            x, y = (
                sum(weight * handle[axis] for weight, handle in zip(weights, handles, strict=True)) for axis in (0, 1)
            )
            yield x, y
        at = piece[-1]


def _dashes(points: list[Point], dash: float, gap: float) -> Iterator[tuple[Point, Point]]:
    """Yield the dashes along a line of straight pieces."""
    done = 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        at = 0.0
        while at < length:
            phase = (done + at) % (dash + gap)
            step = max((dash if phase < dash else dash + gap) - phase, 0.01)
            if phase < dash:
                a, b = at / length, min(at + step, length) / length
                yield (x0 + (x1 - x0) * a, y0 + (y1 - y0) * a), (x0 + (x1 - x0) * b, y0 + (y1 - y0) * b)
            at += step
        done += length


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


_ASPECT = 1.6
"""Width over height, similar to a screen."""


def compose(graph: DrawnGraph, look: Look, colours: Colours, aspect: float = _ASPECT) -> Picture:
    """Lay a graph out and return the shapes to paint; long graphs are broken into columns to approach the aspect."""
    distinct: list[dict[str, None]] = [{} for _ in graph.nodes]
    for edge in graph.edges:
        if edge.label:
            distinct[edge.source][edge.label] = None
    # The text at the output of each node.
    labels = [shown(" | ".join(label), 2 * _MOST_LETTERS) for label in distinct]
    extents = [_extent(node, labels[index], look.direction) for index, node in enumerate(graph.nodes)]
    edges = [(edge.source, edge.target) for edge in graph.edges]
    tensors = [edge.tensor for edge in graph.edges]
    layout = lay_out(extents, edges, tensors, look.direction, aspect if look.columns else None)
    return _Composer(graph, layout, labels, look, colours).picture()


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
    def __init__(self, graph: DrawnGraph, layout: Layout, labels: list[str], look: Look, colours: Colours) -> None:
        self.graph = graph
        self.layout = layout
        self.labels = labels
        self.look = look
        self.colours = colours
        self.left = _MARGIN
        self.top = _MARGIN

    def picture(self) -> Picture:
        head = list(self._head()) if self.look.legend else []
        ends = [shape.x + text_width(shape.text, shape.size) for shape in head if isinstance(shape, Text)]
        width = max(self.layout.width, max(ends, default=0.0) - _MARGIN) + 2 * _MARGIN
        height = self.layout.height + self.top + _MARGIN
        picture = Picture(width, height, self.colours.background, shown(self.graph.title, _MOST_TOOLTIP))
        if self.look.grid:
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
        pieces = pieces_of(points, self.look.direction == "down")
        return Line(
            points[0], pieces, self.colours.edge, dashed=route.back or route.far, arrow=_heading(points, self.look)
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
        if self.look.direction == "down":
            return Text(
                box.x + box.width / 2, box.y + box.height + _EDGE + 1.5 + lower, label, _EDGE, self.colours.quiet
            )
        y = box.y + box.height / 2 + _EDGE / 3
        return Text(box.x + box.width + 4 + lower, y, label, _EDGE, self.colours.quiet, anchor="start")


def _heading(points: tuple[Point, ...], look: Look) -> Point:
    """Return the direction of a line at its end; curves arrive in the direction of the layers."""
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = x1 - x0, y1 - y0
    if (dx and dy and look.direction == "down") or not dx:
        return 0.0, 1.0 if dy > 0 else -1.0
    return 1.0 if dx > 0 else -1.0, 0.0


FORMATS = {".svg": "SVG", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_LARGEST_SCALE = 20.0


def check_look(suffix: str, look: Look) -> None:
    """Raise `RequestError` for an impossible format, background or scale, before a model is read."""
    if suffix.lower() not in FORMATS:
        raise RequestError(
            f"a picture cannot be written as {repr(suffix) if suffix else 'a file without suffix'}: "
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
    picture = compose(graph, look, colours_for(look.background, look.palette))
    file_format = FORMATS[suffix.lower()]
    if file_format == "SVG":
        return svg_text(picture, look.scale).encode()
    return raster_bytes(picture, file_format, look.scale)
