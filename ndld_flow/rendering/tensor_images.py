"""Images of tensors and of formulas: both models, the target, and the difference, with the same black and white."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import number, percent
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.rendered_images import Side
from ndld_flow.rendering.formula import evaluate, parse_formula
from ndld_flow.rendering.pixels import Drawn, Range, choose_range, draw_image, draw_tiles, kernels_of, planes_of
from ndld_flow.rendering.settings import ImageSettings

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

    def _title(self, side: str) -> str:
        models = dict.fromkeys(operand.model or side for operand in self.settings.operands.values())
        return " and ".join(self._labels[model] for model in models)

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
            captions = self._distance(side, values, target)
            yield Panel(side, self._title(side), self._pixels(self._chosen(values)), captions)
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
