"""Arrays to run a model on, as the recipe's `inputs:` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.backends.models.tensors import Array, TensorSpec, numpy_dtype, shape_text
from ndld_flow.backends.running.generated_values import constant_values, random_values
from ndld_flow.backends.running.images import IMAGE_SUFFIXES, image_values
from ndld_flow.backends.running.value_files import cast_to_model, read_npy, read_tensor_proto
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
    assumed: bool = False
    """A free dimension that nobody set was taken as 1."""


@dataclass(frozen=True)
class _Wanted:
    """One input with all that is known of its shape."""

    spec: TensorSpec
    given: InputSpec
    pattern: Pattern
    repeat: bool = False
    """Values from a file that holds fewer items fill the first dimension over and over."""


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
    repeated. Raises `RequestError` naming the input, what was found and what is expected.
    """
    _check_names(inputs, given, model)
    wanted = [_wanted(spec, given.get(spec.name, InputSpec())) for spec in inputs]
    if batch is not None:
        wanted = _with_batch(wanted, batch, model)
    read = {one.spec.name: _read(one) for one in wanted if one.given.data_file is not None}
    sizes = _named_sizes([replace(one, pattern=_shape_of(one, read)) for one in wanted])
    return {one.spec.name: read.get(one.spec.name) or _generated(one, sizes, seed) for one in wanted}


def _shape_of(one: _Wanted, read: Mapping[str, Feed]) -> Pattern:
    return tuple(read[one.spec.name].values.shape) if one.spec.name in read else one.pattern


def _with_batch(wanted: Sequence[_Wanted], batch: int, model: str) -> list[_Wanted]:
    firsts = {one.spec.name: one.spec.shape[0] for one in wanted if one.spec.shape}
    firsts = {name: dim for name, dim in firsts.items() if not isinstance(dim, int)}
    if not firsts:
        raise RequestError(f"{model} has no input whose first dimension is free, so its batch size cannot be changed.")
    names = {dim for dim in firsts.values() if dim}

    def sized(one: _Wanted) -> Pattern:
        dims = enumerate(zip(one.spec.shape or (), one.pattern, strict=True))
        return tuple(
            batch if dim in names or (axis == 0 and one.spec.name in firsts) else size for axis, (dim, size) in dims
        )

    return [replace(one, pattern=sized(one), repeat=True) if one.spec.shape else one for one in wanted]


def note_assumed(feeds: Mapping[str, Feed]) -> tuple[str, ...]:
    """A sentence about inputs whose free dimensions nobody set, for people who did not mean 1; or none."""
    assumed = [f"{name} ({shape_text(feed.values.shape)})" for name, feed in feeds.items() if feed.assumed]
    if not assumed:
        return ()
    return (f"free dimensions not set in the recipe's `inputs:` were taken as 1: {', '.join(assumed)}",)


def _check_names(inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], model: str) -> None:
    known = [spec.name for spec in inputs]
    for name in given:
        if name not in known:
            raise RequestError(f'inputs: "{name}" is no input of {model}; {say_nearest(name, known)}')


def _wanted(spec: TensorSpec, given: InputSpec) -> _Wanted:
    """The model's shape with the recipe's sizes put in."""
    asked = given.run_shape
    if asked is not None:
        _check_shape(spec, spec.shape if spec.shape is not None else asked, asked, "the recipe says")
        return _Wanted(spec, given, asked)
    if spec.shape is None and not str(given.data).lower().endswith(_SHAPED_SUFFIXES):
        raise RequestError(
            f'input "{spec.name}": the model does not say its shape. Give it in the recipe: '
            f"inputs: {{{spec.name}: {{shape: [...]}}}}"
        )
    return _Wanted(spec, given, spec.shape or ())


def _check_shape(spec: TensorSpec, expected: Pattern, found: Sequence[int], origin: str) -> None:
    fits = len(found) == len(expected) and all(
        want == size for want, size in zip(expected, found, strict=True) if isinstance(want, int)
    )
    if not fits:
        raise RequestError(
            f'input "{spec.name}": {origin} shape {shape_text(found)}, expected is {shape_text(expected)} '
            f"(the model's is {spec.shape_text})."
        )


def _named_sizes(wanted: Sequence[_Wanted]) -> dict[str, int]:
    """Dimension name -> the size the recipe gives it, from the first input that says."""
    sizes: dict[str, int] = {}
    for one in wanted:
        for dim, size in zip(one.spec.shape or (), one.pattern, strict=False):
            if isinstance(dim, str) and isinstance(size, int):
                sizes.setdefault(dim, size)
    return sizes


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    dtype = numpy_dtype(spec.dtype)
    if dtype is None or dtype.kind == "c":
        raise RequestError(
            f'input "{spec.name}" is {spec.dtype}: only tensors of floats, integers and bools can be fed.'
        )
    return dtype


def _generated(one: _Wanted, sizes: Mapping[str, int], seed: int) -> Feed:
    name, given, dtype = one.spec.name, one.given, _dtype(one.spec)
    shape = tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in one.pattern)
    if given.data == "random":
        values, how = random_values(name, dtype, shape, given.range, seed)
    elif isinstance(given.data, str):
        values, how = np.full(shape, 0 if given.data == "zeros" else 1, dtype), given.data
    else:
        values, how = constant_values(name, dtype, shape, given.data)
    assumed = any(not isinstance(dim, int) and (dim or "") not in sizes for dim in one.pattern)
    return Feed(values, f"{how}, {dtype.name} {shape_text(shape)}", assumed)


def _read(one: _Wanted) -> Feed:
    dtype = _dtype(one.spec)
    values, how = _from_file(one, dtype)
    if one.spec.shape is not None or one.pattern:
        _check_shape(one.spec, one.pattern, values.shape, f"{one.given.data} has")
    return Feed(values, f"{how}, {dtype.name} {shape_text(values.shape)}")


def _from_file(one: _Wanted, dtype: np.dtype[Any]) -> tuple[Array, str]:
    name, data = one.spec.name, str(one.given.data)
    path = Path(data)
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return image_values(path, name, dtype, one.pattern, one.given), f"image {data} as {one.given.layout}"
    if suffix == ".npy":
        read = read_npy(path, name)
    elif suffix == ".pb":
        read = read_tensor_proto(path, name)
    else:
        raise RequestError(
            f'input "{name}": data "{data}" is neither random, zeros, ones, nor a file that can be read: '
            f".npy, .pb or an image ({', '.join(IMAGE_SUFFIXES)})."
        )
    how = data if read.dtype == dtype else f"{data} cast"
    if one.repeat and read.ndim and len(read):
        read = _repeated(read, one.pattern[0])
    return cast_to_model(read, dtype, name, data), how


def _repeated(read: Array, items: int | str | None) -> Array:
    """The items of a file, over and over, until there are as many as asked for."""
    if not isinstance(items, int) or items == len(read):
        return read
    return np.take(read, np.arange(items) % len(read), axis=0)
