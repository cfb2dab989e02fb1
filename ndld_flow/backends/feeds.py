"""Arrays to run a model on, as the recipe's `inputs:` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ndld_flow.backends.generated_values import random_values
from ndld_flow.backends.images import IMAGE_SUFFIXES, image_values
from ndld_flow.backends.tensors import Array, TensorSpec, numpy_dtype, shape_text
from ndld_flow.backends.value_files import cast_to_model, read_npy, read_tensor_proto
from ndld_flow.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.nearest import say_nearest

_SHAPED_SUFFIXES = (".npy", ".pb")
"""Files that bring their own shape."""
Pattern = tuple[int | str | None, ...]
"""Sizes as far as model and recipe fix them; names and None stay free."""


@dataclass(frozen=True)
class Feed:
    """The values of one input and how they came to be."""

    values: Array
    description: str
    """`random uniform [0, 1), seed 0, float32 1x3x320x320`."""


def make_feeds(
    inputs: Sequence[TensorSpec],
    given: Mapping[str, InputSpec],
    seed: int = 0,
    model: str = "the model",
    batch: int | None = None,
) -> dict[str, Feed]:
    """Values for every input of a model, by name.

    Free dimensions take the size the recipe gives to the same name in another input, else 1. Each input has a random
    stream of its own: equal seeds give equal values whatever the other inputs are. For more samples, raise `seed`.
    `batch` replaces the size of every free first dimension, and of dimensions of the same name; values from files are
    repeated. Raises `RequestError` naming the input, what was found and what the model expects.
    """
    _check_names(inputs, given, model)
    patterns = {spec.name: _pattern(spec, given.get(spec.name, InputSpec())) for spec in inputs}
    if batch is not None:
        patterns = _with_batch(inputs, patterns, batch, model)
    sizes = _named_sizes(inputs, patterns)
    return {
        spec.name: _feed(spec, given.get(spec.name, InputSpec()), patterns[spec.name], sizes, seed) for spec in inputs
    }


def _with_batch(
    inputs: Sequence[TensorSpec], patterns: Mapping[str, Pattern], batch: int, model: str
) -> dict[str, Pattern]:
    firsts = {spec.name: spec.shape[0] for spec in inputs if spec.shape and not isinstance(spec.shape[0], int)}
    if not firsts:
        raise RequestError(f"{model} has no input whose first dimension is free, so its batch size cannot be changed.")
    names = {dim for dim in firsts.values() if dim}
    return {
        spec.name: tuple(
            batch if dim in names or (axis == 0 and spec.name in firsts) else size
            for axis, (dim, size) in enumerate(zip(spec.shape or (), patterns[spec.name], strict=False))
        )
        for spec in inputs
    }


def _check_names(inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], model: str) -> None:
    known = [spec.name for spec in inputs]
    for name in given:
        if name not in known:
            raise RequestError(f'inputs: "{name}" is no input of {model}; {say_nearest(name, known)}')


def _pattern(spec: TensorSpec, given: InputSpec) -> Pattern:
    """The model's shape with the recipe's sizes put in."""
    asked = given.run_shape
    if spec.shape is None:
        if asked is None and not given.data.lower().endswith(_SHAPED_SUFFIXES):
            raise RequestError(
                f'input "{spec.name}": the model does not say its shape. Give it in the recipe: '
                f"inputs: {{{spec.name}: {{shape: [...]}}}}"
            )
        return asked if asked is not None else ()
    if asked is None:
        return spec.shape
    _check_shape(spec, asked, "the recipe says")
    return asked


def _check_shape(spec: TensorSpec, found: Sequence[int], origin: str) -> None:
    expected: Sequence[int | str | None] = spec.shape if spec.shape is not None else found
    fits = len(found) == len(expected) and all(
        want == size for want, size in zip(expected, found, strict=True) if isinstance(want, int)
    )
    if not fits:
        raise RequestError(
            f'input "{spec.name}": {origin} shape {shape_text(found)}, the model expects {spec.shape_text}.'
        )


def _named_sizes(inputs: Sequence[TensorSpec], patterns: Mapping[str, Pattern]) -> dict[str, int]:
    """Dimension name -> the size the recipe gives it, from the first input that says."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        for dim, size in zip(spec.shape or (), patterns[spec.name], strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                sizes.setdefault(dim, size)
    return sizes


def _feed(spec: TensorSpec, given: InputSpec, pattern: Pattern, sizes: Mapping[str, int], seed: int) -> Feed:
    dtype = numpy_dtype(spec.dtype)
    if dtype is None or dtype.kind == "c":
        raise RequestError(
            f'input "{spec.name}" is {spec.dtype}: only tensors of floats, integers and bools can be fed.'
        )
    if given.data_file is not None:
        values, how = _from_file(spec, dtype, given, pattern)
        _check_shape(TensorSpec(spec.name, spec.dtype, pattern or spec.shape), values.shape, f"{given.data} has")
    else:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in pattern)
        values, how = _generated(spec.name, dtype, shape, given, seed)
    return Feed(values, f"{how}, {dtype.name} {shape_text(values.shape)}")


def _generated(
    name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], given: InputSpec, seed: int
) -> tuple[Array, str]:
    if given.data == "random":
        return random_values(name, dtype, shape, given.range, seed)
    return np.full(shape, 0 if given.data == "zeros" else 1, dtype), given.data


def _from_file(spec: TensorSpec, dtype: np.dtype[np.generic], given: InputSpec, pattern: Pattern) -> tuple[Array, str]:
    path = Path(given.data)
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return image_values(path, spec.name, dtype, pattern, given), f"image {given.data} as {given.layout}"
    if suffix == ".npy":
        read = read_npy(path, spec.name)
    elif suffix == ".pb":
        read = read_tensor_proto(path, spec.name)
    else:
        raise RequestError(
            f'input "{spec.name}": data "{given.data}" is neither random, zeros, ones, nor a file that can be read: '
            f".npy, .pb or an image ({', '.join(IMAGE_SUFFIXES)})."
        )
    cast = " cast" if read.dtype != dtype else ""
    if pattern and read.ndim and isinstance(pattern[0], int) and 0 < len(read) < pattern[0]:
        read = np.take(read, np.arange(pattern[0]) % len(read), axis=0)
        cast += " repeated"
    return cast_to_model(read, dtype, spec.name, given.data), f"{given.data}{cast}"
