"""Arrays to run a model on, as the recipe's `inputs:` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.backends.models.tensors import Array, TensorSpec, numpy_dtype, shape_text
from ndld_flow.backends.running.generated_values import constant_values, random_values
from ndld_flow.backends.running.images import image_values
from ndld_flow.backends.running.value_files import cast_to_model, read_npy, read_tensor_proto
from ndld_flow.errors import RequestError
from ndld_flow.found_files import IMAGE_SUFFIXES, KNOWN_SUFFIXES, FoundFile, find_files
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
class WantedInput:
    """One input with all that is known of its shape."""

    spec: TensorSpec
    given: InputSpec
    pattern: Pattern
    place: int = 0
    """Among the model's inputs."""
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
    wanted = want_inputs(inputs, given, model)
    if batch is not None:
        wanted = _with_batch(wanted, batch, model)
    read = {
        one.spec.name: read_feed(one, find_files(one.given.data_patterns)[0])
        for one in wanted
        if one.given.data_patterns
    }
    return complete_feeds(wanted, read, seed)


def want_inputs(inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], model: str) -> list[WantedInput]:
    """Every input of a model with what the recipe says of it. Raises `RequestError` for what does not fit."""
    _check_names(inputs, given, model)
    return [_wanted(spec, given.get(spec.name, InputSpec()), place) for place, spec in enumerate(inputs)]


def complete_feeds(wanted: Sequence[WantedInput], read: Mapping[str, Feed], seed: int) -> dict[str, Feed]:
    """Values for every input: those that were read, and generated ones for all others."""
    sizes = _named_sizes([replace(one, pattern=_shape_of(one, read)) for one in wanted])
    return {one.spec.name: read.get(one.spec.name) or _generated(one, sizes, seed) for one in wanted}


def _shape_of(one: WantedInput, read: Mapping[str, Feed]) -> Pattern:
    return tuple(read[one.spec.name].values.shape) if one.spec.name in read else one.pattern


def _with_batch(wanted: Sequence[WantedInput], batch: int, model: str) -> list[WantedInput]:
    firsts = {one.spec.name: one.spec.shape[0] for one in wanted if one.spec.shape}
    firsts = {name: dim for name, dim in firsts.items() if not isinstance(dim, int)}
    if not firsts:
        raise RequestError(f"{model} has no input whose first dimension is free, so its batch size cannot be changed.")
    names = {dim for dim in firsts.values() if dim}

    def sized(one: WantedInput) -> Pattern:
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


def _wanted(spec: TensorSpec, given: InputSpec, place: int) -> WantedInput:
    """The model's shape with the recipe's sizes put in."""
    asked, patterns = given.run_shape, given.data_patterns
    if asked is not None:
        _check_shape(spec, spec.shape if spec.shape is not None else asked, asked, "the recipe says")
        return WantedInput(spec, given, asked, place)
    if spec.shape is None and not all(pattern.lower().endswith(_SHAPED_SUFFIXES) for pattern in patterns or ("",)):
        raise RequestError(
            f'input "{spec.name}": the model does not say its shape. Give it in the recipe: '
            f"inputs: {{{spec.name}: {{shape: [...]}}}}"
        )
    return WantedInput(spec, given, spec.shape or (), place)


def _check_shape(spec: TensorSpec, expected: Pattern, found: Sequence[int], origin: str) -> None:
    fits = len(found) == len(expected) and all(
        want == size for want, size in zip(expected, found, strict=True) if isinstance(want, int)
    )
    if not fits:
        raise RequestError(
            f'input "{spec.name}": {origin} shape {shape_text(found)}, expected is {shape_text(expected)} '
            f"(the model's is {spec.shape_text})."
        )


def _named_sizes(wanted: Sequence[WantedInput]) -> dict[str, int]:
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


def _generated(one: WantedInput, sizes: Mapping[str, int], seed: int) -> Feed:
    name, given, dtype = one.spec.name, one.given, _dtype(one.spec)
    shape = tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in one.pattern)
    if given.data == "random":
        values, how = random_values(name, dtype, shape, given.range, seed)
    elif isinstance(given.data, int | float):
        values, how = constant_values(name, dtype, shape, given.data)
    else:
        values, how = np.full(shape, 0 if given.data == "zeros" else 1, dtype), str(given.data)
    assumed = any(not isinstance(dim, int) and (dim or "") not in sizes for dim in one.pattern)
    return Feed(values, f"{how}, {dtype.name} {shape_text(shape)}", assumed)


def read_feed(one: WantedInput, file: FoundFile) -> Feed:
    """The values of an input from a file."""
    dtype = _dtype(one.spec)
    values, how = _from_file(one, file.path, dtype)
    if one.spec.shape is not None or one.pattern:
        _check_shape(one.spec, one.pattern, values.shape, f"{file.path} has")
    return Feed(values, f"{how}, {dtype.name} {shape_text(values.shape)}")


def _from_file(one: WantedInput, path: Path, dtype: np.dtype[Any]) -> tuple[Array, str]:
    name, data = one.spec.name, str(path)
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
            f"{', '.join(KNOWN_SUFFIXES)}."
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
