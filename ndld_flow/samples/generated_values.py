"""Generated values of a model's inputs: seeded random, zeros, ones, and those that well-known names or uses ask for.

Zeros as an attention mask hide every token, and integers in [0, 1) are all the first token. A choice is described with
its values; everything that is not recognized stays random.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import ml_dtypes
import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.models.tensors import Array
from ndld_flow.samples.wanted_inputs import WantedInput


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return True for floats of numpy and of ml_dtypes (bfloat16, float8, ...)."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return True for integers of numpy and of ml_dtypes (int4, uint4, ...), but not for bool."""
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def random_stream(name: str, seed: int) -> np.random.Generator:
    """Return a generator for one input: adding, removing or reordering inputs does not change the values of others."""
    own = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng([seed, own])


def random_values(
    name: str, dtype: np.dtype[Any], shape: Sequence[int], bounds: tuple[float, float], seed: int
) -> tuple[Array, str]:
    """Return values uniform in the half-open range `bounds`, and their description. Bools are fair coins.

    Raises `RequestError` if the range is empty or the dtype cannot represent it.
    """
    stream = random_stream(name, seed)
    if dtype.kind == "b":
        return stream.integers(0, 2, size=shape).astype(dtype), f"random bools, seed {seed}"
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise RequestError(
            f'input "{name}": range [{low:g}, {high:g}) is not valid: give two finite numbers, low first.'
        )
    if is_integer(dtype):
        low, high = math.ceil(bounds[0]), math.ceil(bounds[1])
        if low >= high:
            raise RequestError(
                f'input "{name}" is {dtype.name} and no integer is in its range [{bounds[0]:g}, {bounds[1]:g}): '
                "widen `range:`."
            )
        _check_held(name, dtype, (low, high - 1))
        integers = stream.integers(low, high, size=shape, dtype=np.uint64 if low >= 0 else np.int64)
        return np.asarray(integers).astype(dtype), f"random integers [{low:g}, {high:g}), seed {seed}"
    _check_held(name, dtype, bounds)
    drawn: Array = np.asarray(stream.random(shape, np.float64 if dtype.itemsize > 4 else np.float32))
    if bounds != (0.0, 1.0):
        drawn *= high - low
        drawn += low
    values: Array = np.asarray(drawn.astype(dtype, copy=False))
    if low < high:  # rounding to few bits may reach `high`, which the half-open range excludes
        edge = np.nextafter(np.asarray(high, dtype), np.asarray(low, dtype))
        values = np.where(values >= np.asarray(high, dtype), edge, values)
    return values, f"random uniform [{low:g}, {high:g}), seed {seed}"


def constant_values(name: str, dtype: np.dtype[Any], shape: Sequence[int], value: float) -> tuple[Array, str]:
    """Return an array of one number, and its description. Raises `RequestError` if the dtype cannot represent it."""
    if is_integer(dtype) and value != int(value):
        raise RequestError(f'input "{name}" is {dtype.name}, which cannot represent {value}: give an integer.')
    if dtype.kind != "b":
        _check_held(name, dtype, (value, value))
    return np.full(shape, value, dtype), f"all {value}"


def counted_values(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Return 0, 1, 2, ... along the last axis. Raises `RequestError` for an input without one."""
    if not shape:
        raise RequestError(f'input "{name}" is a scalar, and `arange` counts along the last axis.')
    return np.broadcast_to(np.arange(shape[-1]).astype(dtype), shape).copy()


def _check_held(name: str, dtype: np.dtype[Any], bounds: tuple[float, float]) -> None:
    info = ml_dtypes.iinfo(dtype) if is_integer(dtype) else ml_dtypes.finfo(dtype)
    least, most = float(info.min), float(info.max)
    if bounds[0] < least or bounds[1] > most:
        raise RequestError(
            f'input "{name}" is {dtype.name}, which has the range {least:g} to {most:g}: the requested range is '
            f"{bounds[0]:g} to {bounds[1]:g}. Change `data:` or `range:`."
        )


_MASK = re.compile(r"(^|_)mask$")
_HIDING_MASK = re.compile(r"pad|causal|^(src|tgt|memory)_mask$")
"""Masks whose true elements hide: PyTorch's `key_padding_mask`; other exporters mean the opposite by these names."""
_TYPES = re.compile(r"(token_type|segment)_ids$")
_POSITIONS = re.compile(r"position_ids$|^cache_position$")
_LENGTH = re.compile(r"^(?P<owner>|.*?)_?(lens?|lengths?)$")
_LIMITS = re.compile(r"max|min|past|total")
"""Parts of names of lengths that are settings, not the size of another input."""

_UNKNOWN = (np.zeros(0), "")
_NAMED = 4
"""Number of constants in a description."""

Sized = tuple[WantedInput, tuple[int, ...]]
"""An input with all sizes of its values."""


class InputKind(Enum):
    """The meaning of an input that its name reveals."""

    OTHER = auto()
    MASK = auto()
    """True or 1 shows an element."""
    HIDING_MASK = auto()
    """True may hide an element."""
    POSITIONS = auto()
    LENGTH = auto()
    """The size of another input."""


def kind_of(wanted: WantedInput) -> InputKind:
    """Return the meaning of an input by its name and type."""
    name, dtype = _plain_name(wanted), wanted.dtype
    if _MASK.search(name):
        hides = dtype.kind == "b" and bool(_HIDING_MASK.search(name))
        return InputKind.HIDING_MASK if hides else InputKind.MASK
    if is_integer(dtype) and _POSITIONS.search(name):
        return InputKind.POSITIONS
    is_length = is_integer(dtype) and _LENGTH.match(name) and not _LIMITS.search(name)
    return InputKind.LENGTH if is_length and len(wanted.pattern or ()) < 2 else InputKind.OTHER


def usual_values(wanted: WantedInput, shape: tuple[int, ...], others: Sequence[Sized], seed: int) -> tuple[Array, str]:
    """Return the usual values of a random input, and their description; an empty one if none are known."""
    name, dtype = _plain_name(wanted), wanted.dtype
    if (is_integer(dtype) or dtype.kind == "b") and _MASK.search(name) and not _HIDING_MASK.search(name):
        return np.ones(shape, dtype), "ones, a mask that hides nothing"
    if is_integer(dtype) and _TYPES.search(name):
        return np.zeros(shape, dtype), "zeros, the type of the first text"
    if is_integer(dtype) and _POSITIONS.search(name) and shape:
        return counted_values(wanted.name, dtype, shape), f"positions 0 to {max(shape[-1] - 1, 0):,}"
    if not wanted.spec.uses.others and dtype.kind != "b":
        values, how = values_in_use(wanted, shape, random_stream(wanted.name, seed))
        if how:
            return values, f"{how}, seed {seed}"
    return _lengths(name, dtype, shape, others) if is_integer(dtype) else _UNKNOWN


def values_in_use(wanted: WantedInput, shape: tuple[int, ...], stream: np.random.Generator) -> tuple[Array, str]:
    """Return values that the model looks up or compares with constants, and their description; an empty one if it does
    neither.
    """
    uses, dtype = wanted.spec.uses, wanted.dtype
    if uses.rows:
        rows = min(uses.rows, largest_integer(dtype) + 1)
        drawn = stream.integers(0, rows, size=shape)
        return np.asarray(drawn).astype(dtype), f"integers 0 to {rows - 1:,}, all that the model looks up"
    # A number alone is a setting, such as a sample rate.
    held = compared_values(wanted, another=math.prod(shape) > 1)
    described = ", ".join(f"{value:g}" for value in held[:_NAMED]) + (", ..." if len(held) > _NAMED else "")
    how = f"of {described}, which the model compares them with" if held else ""
    return (stream.choice(held, size=shape).astype(dtype), how) if held else _UNKNOWN


def compared_values(wanted: WantedInput, *, another: bool) -> list[float]:
    """Return the constants that values are compared with, and another value; none for data with other uses."""
    uses, most = wanted.spec.uses, largest_integer(wanted.dtype)
    held = [value for value in uses.constants if -most <= value <= most]
    if not held or (is_float(wanted.dtype) and uses.others):  # data, in which zeros may mean padding
        return []
    return [*held, held[-1] + 1] if another and held[-1] < most else held


def largest_integer(dtype: np.dtype[Any]) -> int:
    """Return the largest number up to which a dtype represents every integer, at most 2^31 - 1."""
    exact = 2 ** (ml_dtypes.finfo(dtype).nmant + 1) if is_float(dtype) else int(ml_dtypes.iinfo(dtype).max)
    return min(exact, 2**31 - 1)


def counts_positions(wanted: WantedInput) -> bool:
    """Return True for an input whose values go on at each step of a sequence: `arange`, and usual positions."""
    usual = wanted.given.is_random and is_integer(wanted.dtype) and bool(_POSITIONS.search(_plain_name(wanted)))
    return (wanted.given.data == "arange" or usual) and wanted.spec.shape != ()


def _plain_name(wanted: WantedInput) -> str:
    return re.sub(r"[:.]\d+$", "", wanted.name.lower()).rpartition("/")[2]


def _lengths(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], others: Sequence[Sized]) -> tuple[Array, str]:
    """Return the length of the input that the name refers to, or of all others if these are equally long."""
    found = _LENGTH.match(name)
    if found is None or len(shape) > 1 or _LIMITS.search(name):
        return _UNKNOWN
    signals = [(other, sizes) for other, sizes in others if len(sizes) > 1]
    owners = [(other, sizes) for other, sizes in signals if other.name.lower() == found["owner"]] or signals
    lengths = {_length(other, sizes) for other, sizes in owners}
    if len(lengths) != 1 or None in lengths:
        return _UNKNOWN
    (length,) = lengths
    owner = owners[0][0].name if len(owners) == 1 else "the other inputs"
    return np.full(shape, length, dtype), f"{length:,}, the length of {owner}"


def _length(wanted: WantedInput, sizes: tuple[int, ...]) -> int | None:
    """Return the size of an input's only dynamic dimension after the first; None if another may be its length."""
    declared = wanted.spec.shape or ()
    dynamic = [axis for axis in range(1, len(declared)) if not isinstance(declared[axis], int)]
    if len(sizes) == 2:
        return sizes[1]
    return sizes[dynamic[0]] if len(dynamic) == 1 else None
