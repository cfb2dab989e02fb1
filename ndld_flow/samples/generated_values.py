"""Generated values of a model's inputs: seeded random, zeros, ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.models.tensors import Array


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
        return _integers(stream, name, dtype, shape, bounds), f"random integers [{low:g}, {high:g}), seed {seed}"
    _check_held(name, dtype, bounds)
    return _floats(stream, dtype, shape, bounds), f"random uniform [{low:g}, {high:g}), seed {seed}"


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


def _integers(
    stream: np.random.Generator, name: str, dtype: np.dtype[Any], shape: Sequence[int], bounds: tuple[float, float]
) -> Array:
    low, high = math.ceil(bounds[0]), math.ceil(bounds[1])
    if low >= high:
        raise RequestError(
            f'input "{name}" is {dtype.name} and no integer is in its range [{bounds[0]:g}, {bounds[1]:g}): '
            "widen `range:`."
        )
    _check_held(name, dtype, (low, high - 1))
    drawn = stream.integers(low, high, size=shape, dtype=np.uint64 if low >= 0 else np.int64)
    return np.asarray(drawn).astype(dtype)


def _floats(
    stream: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], bounds: tuple[float, float]
) -> Array:
    low, high = bounds
    drawn: Array = np.asarray(stream.random(shape, np.float64 if dtype.itemsize > 4 else np.float32))
    if bounds != (0.0, 1.0):
        drawn *= high - low
        drawn += low
    values: Array = np.asarray(drawn.astype(dtype, copy=False))
    # Rounding to few bits may reach `high`, which the half-open range excludes.
    edge = np.nextafter(np.asarray(high, dtype), np.asarray(low, dtype))
    return np.where(values >= np.asarray(high, dtype), edge, values) if low < high else values


def _check_held(name: str, dtype: np.dtype[Any], bounds: tuple[float, float]) -> None:
    info = ml_dtypes.iinfo(dtype) if is_integer(dtype) else ml_dtypes.finfo(dtype)
    least, most = float(info.min), float(info.max)
    if bounds[0] < least or bounds[1] > most:
        raise RequestError(
            f'input "{name}" is {dtype.name}, which has the range {least:g} to {most:g}: the requested range is '
            f"{bounds[0]:g} to {bounds[1]:g}. Change `data:` or `range:`."
        )
