"""Values of tensors as pixels, and images of tensors and of formulas."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np
from PIL import Image

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, number, percent
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.images import MOST_ENCODED, Side, Thumbnail
from ndld_flow.rendering.formula import evaluate, parse_formula
from ndld_flow.rendering.settings import ImageSettings, TensorLayout
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
    for index, tile in enumerate(enlarged):
        top, left = _GAP + index // across * (high + _GAP), _GAP + index % across * (wide + _GAP)
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


MODELS: tuple[Side, ...] = ("reference", "candidate")
IDENTICAL_DB = 200.0
"""PSNR of images that are equal, for gates: more than float32 can have otherwise."""
_DIFFERENCE_WHITE = 0.1
"""Share of the range that is white in a difference."""


@dataclass(frozen=True)
class Panel:
    """One image of a row."""

    side: Side
    title: str
    drawn: Drawn
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class SampleValues:
    """The values of one sample."""

    tensors: Mapping[str, Mapping[str, Array]]
    """`candidate`, and `reference` if there is one -> tensor -> values. Weights are among them."""
    inputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    """Model -> input of the reference -> its image, uint8 [height, width, 3], if it is one."""
    target: Array | None = None
    target_title: str = ""


class TensorImage:
    """One entry of `images`, drawn for one sample after the other."""

    def __init__(
        self, name: str, settings: ImageSettings, labels: Mapping[str, str], *, of_weights: bool = False
    ) -> None:
        """`labels`: `candidate` and perhaps `reference` -> the model's label; `of_weights`: all tensors are weights."""
        self.name, self.settings, self._labels, self.of_weights = name, settings, labels, of_weights
        self._formula = None if settings.formula is None else parse_formula(settings.formula)
        self._range: Range | None = None
        self._shape, self._columns = "", 0
        self._psnr: dict[str, list[float]] = {}
        self._largest: list[float] = []
        self.nonfinite = 0
        """Values of the candidate that are NaN or infinite, over all samples."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Return the models for which it is drawn: one if the formula says whose tensors it takes, else each."""
        named = any(operand.model for operand in self.settings.operands.values())
        return ("candidate",) if named else tuple(side for side in MODELS if side in self._labels)

    def names(self, side: str) -> set[str]:
        """Return the tensors of a model that it needs."""
        operands = self.settings.operands.values()
        return {each.tensor for each in operands if side == each.model or (each.model is None and side in self.sides)}

    @property
    def description(self) -> str:
        """Return `tensor output, float32 1x3x64x64, black 0, white 1`."""
        settings = self.settings
        what = f"tensor {settings.tensor}" if settings.formula is None else settings.formula
        if settings.formula is not None:
            operands = [
                f"{name} = {operand.tensor}" + (f" of {self._labels[operand.model]}" if operand.model else "")
                for name, operand in settings.operands.items()
            ]
            what = f"{what} with {', '.join(operands)}"
        return ", ".join(str(part) for part in (what, self._shape, self._range) if part)

    def draw(self, sample: SampleValues) -> Iterator[Panel]:
        """Yield the images of one sample: target, models, difference."""
        planes = {side: self._planes(side, sample.tensors) for side in self.sides}
        present = {side: values for side, values in planes.items() if values is not None}
        if not present:
            raise RequestError(
                f"images.{self.name}: the model computed no tensor {self.settings.tensor or ''} to draw."
            )
        if self._range is None:
            self._range = self._find_range(next(iter(present.values())), sample)
        target = None if sample.target is None else planes_of(sample.target, self.settings.layout, sample.target_title)
        if target is not None:
            yield Panel("target", sample.target_title, self._pixels(self._chosen(target)))
        for side, values in present.items():
            self.nonfinite += int((~np.isfinite(values)).sum()) if side == "candidate" else 0
            models = dict.fromkeys(operand.model or side for operand in self.settings.operands.values())
            title = " and ".join(self._labels[model] for model in models)
            yield Panel(side, title, self._pixels(self._chosen(values)), self._distance(side, values, target))
        if len(present) == len(MODELS) and self._formula is None:
            yield self._difference(present["reference"], present["candidate"])

    def metrics(self) -> dict[str, float]:
        """Return `psnr` and `reference_psnr` of the worst sample, in dB, and the largest difference `max_abs`.

        Unknown ones are left out: those of values that are not finite.
        """
        words = {"candidate": "psnr", "reference": "reference_psnr"}
        worst = {words[side]: min(values) for side, values in self._psnr.items()}
        found = {word: min(value, IDENTICAL_DB) for word, value in worst.items() if value > -math.inf}
        if self._largest and all(map(math.isfinite, self._largest)):
            found["max_abs"] = max(self._largest)
        return found

    def _planes(self, side: str, tensors: Mapping[str, Mapping[str, Array]]) -> Array | None:
        """Return the values to draw for a model; None if it lacks a tensor."""
        operands = {}
        for name, operand in self.settings.operands.items():
            values = tensors.get(operand.model or side, {}).get(operand.tensor)
            if values is None:
                return None
            if self.of_weights and operand.layout is None:
                operands[name], self._columns = kernels_of(values)
            else:
                operands[name] = planes_of(values, operand.layout, operand.tensor)
            self._shape = self._shape or ("" if self._formula else f"{values.dtype.name} {shape_text(values.shape)}")
        if self._formula is None:
            return operands["x"]
        try:
            value = evaluate(self._formula, operands)
        except ValueError as error:
            raise RequestError(f"images.{self.name}: {error}.") from None
        return value.reshape((1,) * (3 - value.ndim) + value.shape)

    def _find_range(self, first: Array, sample: SampleValues) -> Range:
        if self.settings.range is not None:
            return Range(*self.settings.range)
        dtypes = [each.dtype for each in sample.tensors["candidate"].values() if self._formula is None]
        own = sample.tensors["candidate"].get(self.settings.tensor or "")
        return choose_range(self._chosen(first), own.dtype if dtypes and own is not None else first.dtype)

    def _chosen(self, planes: Array) -> Array:
        """Return the channels to draw, in the order red, green, blue."""
        settings = self.settings
        chosen = settings.channels or range(len(planes))
        if max(chosen, default=0) >= max(len(planes), 1):
            raise RequestError(
                f"images.{self.name}.channels: there is no channel {max(chosen)}; the last one is {len(planes) - 1}."
            )
        kept = planes[list(chosen)] if settings.channels else planes
        return kept[::-1] if settings.color == "bgr" and len(kept) == 3 else kept

    def _pixels(self, planes: Array) -> Drawn:
        assert self._range is not None
        draw = self.settings.draw or ("image" if len(planes) in (1, 3) else "tiles")
        if draw == "tiles":
            return draw_tiles(planes, self._range, self._columns)
        if len(planes) not in (1, 3):
            raise RequestError(
                f"images.{self.name}: an image has 1 or 3 channels, not {len(planes)}. Set `channels`, `layout`, or "
                "`draw: tiles`."
            )
        return draw_image(planes, self._range)

    def _distance(self, side: str, values: Array, target: Array | None) -> tuple[str, ...]:
        """Return the PSNR of a model to the target, which is unknown where a value is not finite."""
        if target is None:
            return ()
        assert self._range is not None
        if target.shape != values.shape:
            raise RequestError(
                f"images.{self.name}.target: the target is {shape_text(target.shape)}, the tensor "
                f"{shape_text(values.shape)}."
            )
        measured = psnr(values, target, self._range.width)
        self._psnr.setdefault(side, []).append(measured)
        if math.isfinite(measured):
            return (f"PSNR {measured:.2f} dB",)
        return ("equal to the target" if measured > 0 else "PSNR unknown: not all values are finite",)

    def _difference(self, reference: Array, candidate: Array) -> Panel:
        assert self._range is not None
        title = f"difference: white is {percent(_DIFFERENCE_WHITE)} of the range"
        if reference.shape != candidate.shape:
            shapes = f"{shape_text(reference.shape)} in {self._labels['reference']}, {shape_text(candidate.shape)} here"
            empty = Drawn(np.zeros((1, 1, 3), np.uint8), (f"no difference: the tensor is {shapes}",))
            self._largest.append(math.nan)
            return Panel("difference", "difference", empty)
        with np.errstate(all="ignore"):
            error = np.abs(candidate - reference)
        both = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        error[both] = 0
        largest = float(error.max()) if error.size else 0.0
        self._largest.append(largest)
        caption = f"largest {number(largest)}, {percent(largest / self._range.width)} of the range"
        if not math.isfinite(largest):
            caption = "unknown: not all values are finite"
        white = Range(0.0, _DIFFERENCE_WHITE * self._range.width)
        chosen = self._chosen(error)
        if len(chosen) in (1, 3):
            drawn = draw_image(chosen.max(axis=0, keepdims=True), white)
        else:
            drawn = draw_tiles(chosen, white, self._columns)
        return Panel("difference", title, Drawn(drawn.pixels), (caption if largest else "no difference",))


def psnr(values: Array, target: Array, width: float) -> float:
    """Return the peak signal-to-noise ratio in dB: 10 log10(width^2 / mean((values - target)^2)).

    Infinity if they are equal, -infinity if a value is not finite.
    """
    if not (np.isfinite(values).all() and np.isfinite(target).all()):
        return -math.inf
    squares = float(np.mean(np.square(values - target)))
    return 10 * math.log10(width**2 / squares) if squares else math.inf
