"""Values of tensors as pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from PIL import Image

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, number, percent
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.rendered_images import MOST_ENCODED, Thumbnail
from ndld_flow.rendering.settings import TensorLayout
from ndld_flow.samples.images import find_layout

NONFINITE = (255, 0, 255)
"""Colour of NaN and infinity, which no gray image has."""
_LONGEST_SIDE = 8192
"""Pixels of an image file."""
_MOST_TILES = 1024
_MOST_PIXELS = 2**23
"""Maximum number of pixels of all tiles together."""
_TILE_SIDE = 12
"""Smaller tiles, such as kernels, are enlarged to this many pixels."""
_GAP = 1
_GAP_COLOR = 90
_CLIPPED = 0.01
"""Share of values outside black and white from which an image is not what it seems."""
_THUMBNAIL_SIDE = 480
_ENLARGED_SIDE = 160
"""Smaller images are enlarged in a page, pixel by pixel."""
_QUALITY = 88


def planes_of(values: Array, layout: TensorLayout | None, name: str) -> Array:
    """Return the first item of a batch as float64 [channels, height, width].

    Raises `RequestError` for a layout that does not fit the dimensions, and for dtypes that are not numbers.
    """
    if values.dtype.kind not in "biufV":
        raise RequestError(f"images: {name} is not a tensor of numbers.")
    if values.ndim < 2 and layout is None:
        values = values.reshape(1, -1)
    if layout is None and values.size:
        while values.ndim > 4:
            values = values[0]
    chosen = layout or _infer_layout(values.shape)
    if len(chosen) != values.ndim:
        raise RequestError(
            f"images: {name} is {shape_text(values.shape)}, which cannot be {chosen}."
            + (" Give `layout`." if layout is None else "")
        )
    if not values.size:
        return np.zeros((0, 0, 0))
    item = values[0] if chosen.startswith("N") else values
    if chosen == "HW":
        item = item[np.newaxis]
    return np.asarray(item.transpose(2, 0, 1) if chosen.endswith("HWC") else item).astype(np.float64)


def kernels_of(values: Array) -> tuple[Array, int]:
    """Return weights as float64 [kernels, height, width], and the number of kernels in a row: the input channels.

    Weights of other ranks than those of convolutions are one image, whose rows are the first dimension.
    """
    if values.ndim < 4:
        return values.reshape(1, values.shape[0] if values.ndim else 1, -1).astype(np.float64), 1
    kernels = values.reshape(-1, *values.shape[-2:]).astype(np.float64)
    in_row = len(kernels) // max(values.shape[0], 1)
    return kernels, in_row if in_row > 1 else 0


def _infer_layout(shape: Sequence[int]) -> TensorLayout:
    if len(shape) == 4:
        return "NHWC" if find_layout(tuple(shape)) == "NHWC" else "NCHW"
    if len(shape) == 3:
        return "HWC" if find_layout(tuple(shape)) == "NHWC" else "CHW"
    return "HW"


@dataclass(frozen=True)
class Range:
    """The values of black and white."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low

    def __str__(self) -> str:
        return f"black {number(self.low)}, white {number(self.high)}"


def choose_range(values: Array, dtype: np.dtype[np.generic]) -> Range:
    """Return [0, 255] for integers of 8 bits, [0, 1] if no value is outside, else the smallest and largest value."""
    if dtype == np.uint8:
        return Range(0.0, 255.0)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low >= 0 and high <= 1:
        return Range(0.0, 1.0)
    return Range(low, high) if high > low else Range(low - 0.5, low + 0.5)


@dataclass(frozen=True)
class Drawn:
    """An image with the facts that it cannot show."""

    pixels: Array
    """uint8 [height, width, 3]."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Facts of less weight than warnings."""


def gray_levels(planes: Array, span: Range) -> Array:
    """Return uint8 [channels, height, width, 3]: gray, with NaN and infinity in magenta."""
    finite = np.isfinite(planes)
    with np.errstate(over="ignore", invalid="ignore"):
        # Halves, because the distance of two large numbers may overflow.
        shares = (np.where(finite, planes, span.low) / 2 - span.low / 2) / (span.high / 2 - span.low / 2)
    levels = np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)
    colored = np.repeat(levels[..., np.newaxis], 3, axis=-1)
    colored[~finite] = NONFINITE
    return colored


def draw_image(planes: Array, span: Range) -> Drawn:
    """Return one channel in gray, or three in red, green and blue; a pixel that is not finite is magenta."""
    colored = gray_levels(planes, span)
    if len(planes) == 3:
        pixels = np.ascontiguousarray(colored[..., 0].transpose(1, 2, 0))
        pixels[~np.isfinite(planes).all(axis=0)] = NONFINITE
    else:
        pixels = colored[0]
    return _described(pixels, planes, span)


def draw_tiles(planes: Array, span: Range, columns: int = 0) -> Drawn:
    """Return every channel as a gray tile; `columns` is the number of tiles in a row, by default about a square."""
    count, height, width = planes.shape
    factor = max(1, ceil(_TILE_SIDE / max(height, width, 1)))
    shown = min(count, _MOST_TILES, max(1, _MOST_PIXELS // max(height * width * factor**2, 1)))
    across = min(columns, shown) if columns else ceil(sqrt(shown * max(height, 1) / max(width, 1)))
    across = max(1, min(across, shown))
    colored = gray_levels(planes[:shown], span)
    enlarged = colored.repeat(factor, axis=1).repeat(factor, axis=2)
    rows, (high, wide) = ceil(shown / across), enlarged.shape[1:3]
    sheet = np.full((rows * (high + _GAP) + _GAP, across * (wide + _GAP) + _GAP, 3), _GAP_COLOR, np.uint8)
    for place, tile in enumerate(enlarged):
        top, left = _GAP + place // across * (high + _GAP), _GAP + place % across * (wide + _GAP)
        sheet[top : top + high, left : left + wide] = tile
    left_out = (f"{shown} of {counted(count, 'channel')}",) if shown < count else ()
    return _described(sheet, planes, span, *left_out)


def _described(pixels: Array, planes: Array, span: Range, *notes: str) -> Drawn:
    """Return an image of at most `_LONGEST_SIDE` pixels in height and width, with the number of values that it cannot
    show: not finite, or outside black and white.
    """
    finite = np.isfinite(planes)
    lost = planes.size - int(finite.sum())
    warnings = [f"{lost:,} of {counted(planes.size, 'value')} NaN or infinite (magenta)"] if lost else []
    margin = 1e-6 * span.width
    outside = int((finite & ((planes < span.low - margin) | (planes > span.high + margin))).sum())
    found = list(notes)
    if outside:
        large = outside > _CLIPPED * planes.size
        (warnings if large else found).append(f"{percent(outside / planes.size)} of the values beyond black or white")
    if not planes.size:
        return Drawn(np.full((1, 1, 3), NONFINITE, np.uint8), (*warnings, "the tensor is empty"))
    step = ceil(max(pixels.shape[:2]) / _LONGEST_SIDE)
    if step > 1:
        pixels = np.ascontiguousarray(pixels[::step, ::step])
        found.append(f"one of {step} rows and columns")
    return Drawn(pixels, tuple(warnings), tuple(found))


def as_bytes(pixels: Array) -> bytes:
    """Return an image as PNG, in gray if it has no color."""
    picture = Image.fromarray(pixels)
    if (pixels[..., :1] == pixels).all():
        picture = picture.convert("L")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def thumbnail_of(pixels: Array) -> Thumbnail | None:
    """Return an image reduced for a page, as PNG or, if that is shorter, as JPEG; None if both are too long."""
    picture = Image.fromarray(pixels)
    longest = max(picture.size)
    if longest > _THUMBNAIL_SIDE:
        picture.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE), Image.Resampling.BOX)
    elif longest < _ENLARGED_SIDE:
        factor = _ENLARGED_SIDE // longest
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    png, jpeg = io.BytesIO(), io.BytesIO()
    picture.save(png, "PNG")
    picture.save(jpeg, "JPEG", quality=_QUALITY)
    # PNG keeps sharp edges; JPEG is used where PNG would be more than twice as large.
    is_png = png.tell() <= 2 * jpeg.tell()
    data = base64.b64encode((png if is_png else jpeg).getvalue()).decode("ascii")
    if len(data) > MOST_ENCODED:
        return None
    return Thumbnail(format="png" if is_png else "jpeg", data=data, width=picture.width, height=picture.height)
