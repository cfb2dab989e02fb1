"""Inputs of a model before their values exist: the model's shape combined with the recipe's sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.inputs import InputSpec, shape_override
from ndld_flow.models.tensors import TEXT, Array, TensorSpec, dtype_text, numpy_dtype, shape_text

Pattern = tuple[int | str | None, ...]
"""Sizes as far as model and recipe fix them; dynamic dimensions are names or None."""


PARTS = ("attention_mask", "token_type_ids", "position_ids")
"""Ends of the names of inputs that a tokenizer fills together with the tokens' numbers."""


@dataclass(frozen=True)
class ImageOrigin:
    """The image from which values were made."""

    width: int
    height: int
    restore: Callable[[Array], Array]
    """Returns the pixels `[H, W, C]` of the first image in values of the input, from 0 to 255."""
    settings: Mapping[str, str]
    """Settings of the conversion, defaults included."""


@dataclass(frozen=True)
class Feed:
    """The values of one input and their origin."""

    values: Array
    description: str
    """`random uniform [0, 1), seed 0, float32 1x3x320x320`."""
    open_sizes: str = ""
    """The shape, `[1,3,height,width]`, if free dimensions without a size were taken as 1."""
    is_from_file: bool = False
    """The values were read, possibly by a user's loader, and not generated."""
    notes: tuple[str, ...] = ()
    """Caveats about the conversion of a file: `photo.jpg has transparent pixels, ...`."""
    image: ImageOrigin | None = None
    """None if the values are not those of an image."""


@dataclass(frozen=True)
class WantedInput:
    """One input with the known part of its shape."""

    spec: TensorSpec
    given: InputSpec
    pattern: Pattern | None
    """None if neither model nor recipe gives a shape: a file determines its own."""
    place: int = 0
    """Index among the model's inputs."""
    repeat: bool = False
    """Values from a file with fewer items are repeated along the first dimension."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype, `TEXT` for strings. Raises `RequestError` for one that cannot be fed."""
        if self.spec.dtype == "string":
            return TEXT
        dtype = numpy_dtype(self.spec.dtype)
        if dtype is None or dtype.kind == "c":
            raise _not_fed(self.spec)
        return dtype

    def describe(self, values: Array) -> str:
        """Return `float32 1x3x320x320`."""
        return f"{dtype_text(self.dtype)} {shape_text(values.shape)}"

    def check_shape(self, shape: Sequence[int], origin: str) -> None:
        """Check a shape. Raises `RequestError` such as `origin shape 1x4x8x8, expected ...`."""
        if self.pattern is not None and not fits(shape, self.pattern):
            expected = shape_text(self.pattern)
            own = "" if self.spec.shape_text == expected else f" (the model's is {self.spec.shape_text})"
            raise RequestError(f'input "{self.name}": {origin} shape {shape_text(shape)}, expected {expected}{own}.')


@dataclass(frozen=True)
class FileSamples(ABC):
    """The samples of one input in one file."""

    wanted: WantedInput
    label: str
    """Name of the file in messages."""
    path: Path

    @property
    def has_frames(self) -> bool:
        """Return True for a video or an animation, by the type of the file, and for windows of a signal."""
        return False

    @property
    def distortion(self) -> str:
        """Return the change of an image's aspect ratio that nothing requests, `640x480 -> 320x320 (stretch)`; else
        empty. At most the header is read.
        """
        return ""

    @abstractmethod
    def count(self, most: int) -> int:
        """Return the number of samples, counted up to `most`. Raises `RequestError` for a file that does not fit."""

    @abstractmethod
    def feeds(self) -> Iterator[tuple[str, Feed]]:
        """Yield label and values of each sample. Raises `RequestError` naming the input and the file."""


def want_inputs(inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], model: str) -> list[WantedInput]:
    """Return every input of a model with its settings in the recipe.

    Raises `RequestError` for an input that the model does not have, or a shape that does not match the model's.
    """
    check_names(given, inputs, "inputs", model)
    # Mask, types and positions of tokens come from the text of the only input that has a tokenizer, unless they have
    # values of their own.
    sources = [spec for name, spec in given.items() if spec.tokenizer is not None and not part_of(name)]
    if len(sources) == 1:
        shared = {"data": sources[0].data, "tokenizer": sources[0].tokenizer, "max_length": sources[0].max_length}
        parts = {spec.name: given.get(spec.name, InputSpec()) for spec in inputs if part_of(spec.name)}
        given = {**given, **{name: own.model_copy(update=shared) for name, own in parts.items() if own.is_random}}
    return [_wanted(spec, given.get(spec.name, InputSpec()), index) for index, spec in enumerate(inputs)]


def part_of(name: str) -> str:
    """Return the part of encoded text that an input's name ends with; empty for the tokens' numbers."""
    return next((part for part in PARTS if name.endswith(part)), "")


def check_names(named: Mapping[str, object], inputs: Sequence[TensorSpec], where: str, model: str) -> None:
    """Check that each name is an input. Raises `RequestError` otherwise; `where` is the setting with the names."""
    known = [spec.name for spec in inputs]
    for name in named:
        if name not in known:
            raise UnknownNameError(f'{where}: "{name}" is not an input of {model}', name, known)


def with_batch(wanted: Sequence[WantedInput], batch: int, model: str) -> list[WantedInput]:
    """Return the same with a size for every dynamic first dimension, and for dimensions of the same name."""
    firsts = {each.name: each.spec.shape[0] for each in wanted if each.spec.shape}
    firsts = {name: dim for name, dim in firsts.items() if not isinstance(dim, int)}
    if not firsts:
        raise RequestError(
            f"{model} has no input whose first dimension is dynamic, so its batch size cannot be changed."
        )
    names = {dim for dim in firsts.values() if dim}

    def sized(each: WantedInput) -> Pattern:
        dims = enumerate(zip(each.spec.shape or (), each.pattern or (), strict=True))
        return tuple(
            batch if dim in names or (axis == 0 and each.name in firsts) else size for axis, (dim, size) in dims
        )

    return [replace(each, pattern=sized(each), repeat=True) if each.spec.shape else each for each in wanted]


def named_sizes(wanted: Sequence[WantedInput]) -> dict[str, int]:
    """Return dimension name -> its size in the first input that has one."""
    sizes: dict[str, int] = {}
    for each in wanted:
        for dim, size in zip(each.spec.shape or (), each.pattern or (), strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                sizes.setdefault(dim, size)
    return sizes


def fits(shape: Sequence[int], pattern: Pattern) -> bool:
    """Return True if a shape has the pattern's sizes."""
    return len(shape) == len(pattern) and all(
        want == size for want, size in zip(pattern, shape, strict=True) if isinstance(want, int)
    )


def _wanted(spec: TensorSpec, given: InputSpec, place: int) -> WantedInput:
    """Return the model's input with the recipe's sizes."""
    shape = given.run_shape
    if shape is not None:
        WantedInput(spec, given, spec.shape).check_shape(shape, "the recipe has")
        return WantedInput(spec, given, shape, place)
    if spec.shape is None and not given.data_patterns:
        is_tensor = spec.dtype == "string" or numpy_dtype(spec.dtype) is not None
        raise shape_unknown(spec.name) if is_tensor else _not_fed(spec)
    return WantedInput(spec, given, spec.shape, place)


def _not_fed(spec: TensorSpec) -> RequestError:
    return RequestError(
        f'input "{spec.name}" is {spec.dtype}: only tensors of floats, integers, bools and strings can be fed.'
    )


def shape_unknown(name: str) -> RequestError:
    """Return the error for an input whose shape neither the model nor the recipe gives."""
    return RequestError(
        f'input "{name}": the model does not declare its shape. Give it in the recipe\'s `inputs:`, or with '
        f"{shape_override(name, '[...]')}."
    )
