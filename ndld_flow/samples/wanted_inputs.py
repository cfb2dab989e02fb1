"""What is known of each input of a model before its values are made: the model's shape with the recipe's sizes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype, shape_text

Pattern = tuple[int | str | None, ...]
"""Sizes as far as model and recipe fix them; names and None stay free."""


@dataclass(frozen=True)
class Feed:
    """The values of one input and how they came to be."""

    values: Array
    description: str
    """`random uniform [0, 1), seed 0, float32 1x3x320x320`."""
    assumed: bool = False
    """A free dimension that nobody set was taken as 1."""
    is_from_file: bool = False
    """The values were read, by a loader of the user's own too, and not generated."""


@dataclass(frozen=True)
class WantedInput:
    """One input with all that is known of its shape."""

    spec: TensorSpec
    given: InputSpec
    pattern: Pattern | None
    """None where nobody says: a file brings its own."""
    place: int = 0
    """Among the model's inputs."""
    repeat: bool = False
    """Values from a file that holds fewer items fill the first dimension over and over."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """Raises `RequestError` for what cannot be fed."""
        dtype = numpy_dtype(self.spec.dtype)
        if dtype is None or dtype.kind == "c":
            raise RequestError(
                f'input "{self.name}" is {self.spec.dtype}: only tensors of floats, integers and bools can be fed.'
            )
        return dtype

    def check_shape(self, found: Sequence[int], origin: str) -> None:
        """Raises `RequestError` for a shape that is not the one wanted: `origin shape 1x4x8x8, expected is ...`."""
        if self.pattern is not None and not fits(found, self.pattern):
            raise RequestError(
                f'input "{self.name}": {origin} shape {shape_text(found)}, expected is {shape_text(self.pattern)} '
                f"(the model's is {self.spec.shape_text})."
            )


def want_inputs(inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], model: str) -> list[WantedInput]:
    """Every input of a model with what the recipe says of it.

    Raises `RequestError` for an input that the model has not, or a shape that is not the model's.
    """
    check_names(given, inputs, "inputs", model)
    return [_wanted(spec, given.get(spec.name, InputSpec()), place) for place, spec in enumerate(inputs)]


def check_names(named: Mapping[str, object], inputs: Sequence[TensorSpec], where: str, model: str) -> None:
    """Raises `RequestError` for a name that no input has; `where` says who names it."""
    known = [spec.name for spec in inputs]
    for name in named:
        if name not in known:
            raise RequestError(f'{where}: "{name}" is no input of {model}; {suggest(name, known)}')


def with_batch(wanted: Sequence[WantedInput], batch: int, model: str) -> list[WantedInput]:
    """The same with a size for every free first dimension, and for dimensions of the same name."""
    firsts = {one.name: one.spec.shape[0] for one in wanted if one.spec.shape}
    firsts = {name: dim for name, dim in firsts.items() if not isinstance(dim, int)}
    if not firsts:
        raise RequestError(f"{model} has no input whose first dimension is free, so its batch size cannot be changed.")
    names = {dim for dim in firsts.values() if dim}

    def sized(one: WantedInput) -> Pattern:
        dims = enumerate(zip(one.spec.shape or (), one.pattern or (), strict=True))
        return tuple(
            batch if dim in names or (axis == 0 and one.name in firsts) else size for axis, (dim, size) in dims
        )

    return [replace(one, pattern=sized(one), repeat=True) if one.spec.shape else one for one in wanted]


def named_sizes(wanted: Sequence[WantedInput]) -> dict[str, int]:
    """Dimension name -> the size it has in the first input where it has one."""
    sizes: dict[str, int] = {}
    for one in wanted:
        for dim, size in zip(one.spec.shape or (), one.pattern or (), strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                sizes.setdefault(dim, size)
    return sizes


def fits(found: Sequence[int], pattern: Pattern) -> bool:
    """Whether a shape has the pattern's sizes."""
    return len(found) == len(pattern) and all(
        want == size for want, size in zip(pattern, found, strict=True) if isinstance(want, int)
    )


def _wanted(spec: TensorSpec, given: InputSpec, place: int) -> WantedInput:
    """The model's shape with the recipe's sizes put in."""
    asked = given.run_shape
    if asked is not None:
        WantedInput(spec, given, spec.shape).check_shape(asked, "the recipe says")
        return WantedInput(spec, given, asked, place)
    if spec.shape is None and not given.data_patterns:
        raise shape_unknown(spec.name)
    return WantedInput(spec, given, spec.shape, place)


def shape_unknown(name: str) -> RequestError:
    """The error for an input whose shape neither the model nor the recipe says."""
    return RequestError(
        f'input "{name}": the model does not say its shape. Give it in the recipe: inputs: {{{name}: {{shape: [...]}}}}'
    )
