"""Rasterize a picture as PNG or JPEG with Pillow, in strips, so that a large one needs little memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.drawing.graph import Point
from ndld_flow.drawing.picture import Line, Picture, Rectangle, Text, arrow_corners, parts

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
    _check_size(width, height)
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


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise RequestError("the picture would have no pixels: give a larger --scale.")
    # The maximum side of a JPEG; few programs show a larger PNG.
    if width * height > MOST_PIXELS or max(width, height) > 65_000:
        fitting = min((MOST_PIXELS / width / height) ** 0.5, 65_000 / max(width, height))
        raise RequestError(
            f"the picture would have {width:,} x {height:,} pixels, more than most programs can open: write an .svg, "
            f"draw a part with --subgraph, or give a --scale below {fitting:.2g} times this one."
        )


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
            if first <= high and last >= low:
                self._paint(draw, shape, top)
        return image

    def _paint(self, draw: ImageDraw, shape: Line | Rectangle | Text, top: int) -> None:
        if isinstance(shape, Line):
            self._line(draw, shape, top)
        elif isinstance(shape, Rectangle):
            self._rectangle(draw, shape, top)
        else:
            self._text(draw, shape, top)

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
        first, second, end = piece
        for step in range(1, _CURVE_STEPS + 1):
            yield _on_curve((at, first, second, end), step / _CURVE_STEPS)
        at = end


def _on_curve(handles: tuple[Point, Point, Point, Point], part: float) -> Point:
    rest = 1 - part
    weights = (rest**3, 3 * rest * rest * part, 3 * rest * part * part, part**3)
    return (
        sum(weight * handle[0] for weight, handle in zip(weights, handles, strict=True)),
        sum(weight * handle[1] for weight, handle in zip(weights, handles, strict=True)),
    )


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
