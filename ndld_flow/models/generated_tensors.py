"""Tensors of made-up numbers, of any size, made while they are written."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.models.derived_tensors import Array, StreamedTensor

_PIECE_ELEMENTS = 2**18
"""Part of what the numbers are: another size would make others. A multiple of what packs into whole bytes."""
_LARGEST_INTEGER = 100
_ON_DISK_BYTES = 64 * 2**20
"""Larger ones belong into a data file."""

KINDS = ("normal", "zeros", "ones", "uniform_positive", "uniform_negative")

_Draw = Callable[[np.random.Generator, int], Array]


class GeneratedTensor(StreamedTensor):
    """Numbers of one kind; the same for the same seed, name, type and shape.

    `normal`: mean 0, standard deviation 1; of integers, rounded. `uniform_positive`: (0, 1]; of integers, 1 to 100 or
    the type's largest. `uniform_negative`: the same with a minus sign. Truth values are `zeros`, `ones`, or, for
    `uniform_positive`, half of each.
    """

    def __init__(self, kind: str, dtype: ir.DataType, shape: Sequence[int], name: str, seed: int = 0) -> None:
        """Raises `RequestError` for a kind that the dtype cannot hold."""
        _refuse(kind, dtype)
        super().__init__(dtype, shape, name)
        self._draw = _INTEGER[kind](dtype) if _counts(dtype) else _floating(kind, dtype)
        self._seed = (seed, zlib.crc32(name.encode()))
        self.belongs_outside = self.nbytes > _ON_DISK_BYTES
        """Whether it goes to a data file; of one that replaces an external tensor it should."""

    @property
    def on_disk(self) -> bool:
        return self.belongs_outside

    def pieces(self) -> Iterator[bytes]:
        """A quarter of a million numbers at a time."""
        random = np.random.default_rng(self._seed)
        left = math.prod(self.shape.numpy())
        while left > 0:
            count = min(left, _PIECE_ELEMENTS)
            yield element_bytes(self._draw(random, count), self.dtype)
            left -= count


def element_bytes(elements: Array, dtype: ir.DataType) -> bytes:
    """The numbers as a tensor stores them; of types under 8 bits, packed."""
    return ir.Tensor(elements.astype(dtype.numpy()), dtype=dtype).tobytes()


def _counts(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype == ir.DataType.BOOL


def _refuse(kind: str, dtype: ir.DataType) -> None:
    word = dtype.name.lower()
    if not _counts(dtype) and not dtype.is_floating_point():
        raise RequestError(f"numbers of the type {word} cannot be made up; give a value or a .npy file")
    below_zero = kind in ("normal", "uniform_negative")
    if below_zero and (dtype in (ir.DataType.BOOL, ir.DataType.FLOAT8E8M0) or not dtype.is_signed()):
        raise RequestError(f"{kind} makes numbers below 0, which {word} cannot hold; use uniform_positive")
    if kind == "zeros" and dtype == ir.DataType.FLOAT8E8M0:
        raise RequestError(f"{word} holds powers of 2 and no 0; use ones")


_FLOATING: Mapping[str, _Draw] = {
    "normal": lambda random, count: random.standard_normal(count),
    "zeros": lambda random, count: np.zeros(count),
    "ones": lambda random, count: np.ones(count),
    "uniform_positive": lambda random, count: 1 - random.random(count),
    "uniform_negative": lambda random, count: random.random(count) - 1,
}


def _floating(kind: str, dtype: ir.DataType) -> _Draw:
    draw = _FLOATING[kind]
    if not kind.startswith("uniform"):
        return draw
    least = float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)

    def not_zero(random: np.random.Generator, count: int) -> Array:
        """What the type would round to 0 is neither positive nor negative."""
        drawn = draw(random, count)
        return np.copysign(np.maximum(np.abs(drawn), least), drawn)

    return not_zero


def _largest(dtype: ir.DataType) -> int:
    return 1 if dtype == ir.DataType.BOOL else min(_LARGEST_INTEGER, int(ml_dtypes.iinfo(dtype.numpy()).max))


def _rounded_normal(dtype: ir.DataType) -> _Draw:
    most = _largest(dtype)
    return lambda random, count: np.clip(np.rint(random.standard_normal(count)), -most, most).astype(np.int64)


def _positive(dtype: ir.DataType) -> _Draw:
    least = 0 if dtype == ir.DataType.BOOL else 1
    return lambda random, count: random.integers(least, _largest(dtype), count, endpoint=True)


def _negative(dtype: ir.DataType) -> _Draw:
    return lambda random, count: -random.integers(1, _largest(dtype), count, endpoint=True)


_INTEGER: Mapping[str, Callable[[ir.DataType], _Draw]] = {
    "normal": _rounded_normal,
    "zeros": lambda dtype: lambda random, count: np.zeros(count, np.int64),
    "ones": lambda dtype: lambda random, count: np.ones(count, np.int64),
    "uniform_positive": _positive,
    "uniform_negative": _negative,
}
