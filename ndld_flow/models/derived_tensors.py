"""Tensors that are computed piece by piece while they are written: from other tensors, or generated.

A weight of any size on disk is read, converted and written in a few megabytes of memory.
"""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.errors import RequestError

Array = npt.NDArray[Any]
_PIECE_BYTES = 2**20
_TRANSPOSED_ELEMENTS = 2**20


class Writable(Protocol):
    """An object to which bytes can be written."""

    def write(self, data: Any, /) -> object: ...  # noqa: ANN401 - bytes or any other buffer


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes are computed while they are written and are never all in memory at once."""

    def __init__(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(self._materialize, dtype, ir.Shape(shape), name=name)

    @property
    @abstractmethod
    def on_disk(self) -> bool:
        """True if its data belongs in an external data file."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """Yield the elements' bytes in pieces of any size."""

    def tofile(self, file: Writable) -> None:
        """Write the elements' bytes, piece by piece."""
        for piece in self.pieces():
            file.write(piece)

    def tobytes(self) -> bytes:
        return b"".join(self.pieces())

    def _materialize(self) -> ir.Tensor[Array] | ir.PackedTensor[Array]:
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(np.frombuffer(self.tobytes(), np.uint8), self.dtype, shape=shape, name=self.name)
        flat = np.frombuffer(self.tobytes(), dtype=self.dtype.numpy())
        return ir.Tensor(flat.reshape(shape), dtype=self.dtype, name=self.name)


def on_disk(tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor is in a data file, or is computed and belongs there."""
    return isinstance(tensor, ir.ExternalTensor) or (isinstance(tensor, StreamedTensor) and tensor.on_disk)


class TensorFromSource(StreamedTensor):
    """A tensor that is computed from another one, in a data file if that is."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(dtype, shape, name)
        self.source = source

    @property
    def on_disk(self) -> bool:
        return on_disk(self.source)


class DerivedTensor(TensorFromSource):
    """A tensor of the same shape as its source, computed elementwise from it."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> None:
        super().__init__(source, dtype, source.shape.numpy(), name)

    @abstractmethod
    def convert(self, piece: Array) -> Array:
        """Convert flat elements of the source to as many elements of this tensor's dtype."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the converted bytes; a source on disk is read in pieces."""
        for piece in array_pieces(self.source):
            yield self.convert(piece).tobytes()


class TransposedTensor(TensorFromSource):
    """A tensor with its axes in another order."""

    def __init__(self, source: ir.TensorProtocol, perm: Sequence[int], name: str) -> None:
        shape = source.shape.numpy()
        super().__init__(source, source.dtype, [shape[axis] for axis in perm], name)
        self._perm = tuple(perm)

    def pieces(self) -> Iterator[bytes]:
        """Yield some indices of the first axis at a time; a source on disk is mapped while it is read."""
        count, *rest = self.shape.numpy()
        # A part of a tensor of packed elements need not fill whole bytes.
        step = max(1, _TRANSPOSED_ELEMENTS // max(math.prod(rest), 1)) if self.dtype.bitwidth >= 8 else count
        moved = _mapped(self.source).transpose(self._perm)
        for start in range(0, count, step):
            yield element_bytes(np.ascontiguousarray(moved[start : start + step]), self.dtype)


def _mapped(tensor: ir.TensorProtocol) -> Array:
    """Return a tensor's values; the map of one on disk ends with the array, unlike onnx_ir's."""
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8 or not tensor.nbytes:
        return tensor.numpy()
    kind, shape = np.dtype(tensor.dtype.numpy()), tensor.shape.numpy()
    return np.memmap(tensor.path, kind.newbyteorder("<"), "r", tensor.offset or 0, shape)


def array_pieces(tensor: ir.TensorProtocol) -> Iterator[Array]:
    """Yield the elements of a tensor, flat and in order, in pieces of about a megabyte; not for types below 8 bits."""
    for data in byte_pieces(tensor, _PIECE_BYTES):
        yield np.frombuffer(data, dtype=tensor.dtype.numpy())


def byte_pieces(tensor: ir.TensorProtocol, size: int) -> Iterator[bytes]:
    """Yield a tensor's bytes in pieces of this size; the last may be shorter.

    The file is read, not mapped: mapped pages would count as memory of this process.
    """
    if isinstance(tensor, StreamedTensor):
        yield from _regrouped(tensor.pieces(), size)
        return
    if not isinstance(tensor, ir.ExternalTensor):
        data = memoryview(tensor.tobytes())
        yield from (data[start : start + size].tobytes() for start in range(0, len(data), size))
        return
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        left = tensor.nbytes
        while left > 0 and (piece := file.read(min(size, left))):
            left -= len(piece)
            yield piece


def _regrouped(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        rest += part
        whole = len(rest) // size * size
        yield from (rest[start : start + size] for start in range(0, whole, size))
        rest = rest[whole:]
    if rest:
        yield rest


_PIECE_ELEMENTS = 2**18
"""Part of what the seed determines: another size would give other numbers. A multiple of the elements that fill whole
bytes."""
_ON_DISK_BYTES = 64 * 2**20
"""Larger tensors belong in a data file."""

KINDS = ("normal", "zeros", "ones", "uniform_positive", "uniform_negative")

_Draw = Callable[[np.random.Generator, int], Array]


class GeneratedTensor(StreamedTensor):
    """Random or constant numbers; the same for the same seed, name, type and shape.

    `normal`: mean 0, standard deviation 1, rounded for integers. `uniform_positive`: (0, 1], for integers 1 to
    the type's largest value. `uniform_negative`: the same with a minus sign. Booleans are `zeros`, `ones`, or, for
    `uniform_positive`, half of each.
    """

    def __init__(self, kind: str, dtype: ir.DataType, shape: Sequence[int], name: str, seed: int = 0) -> None:
        """Raise `RequestError` for a kind that the dtype cannot represent."""
        _check_kind(kind, dtype)
        super().__init__(dtype, shape, name)
        self._draw = _INTEGER[kind](dtype) if _is_integral(dtype) else _floating(kind, dtype)
        self._seed = (seed, zlib.crc32(name.encode()))
        self.belongs_outside = self.nbytes > _ON_DISK_BYTES
        """True if it goes to a data file; set it for a tensor that replaces an external one."""

    @property
    def on_disk(self) -> bool:
        return self.belongs_outside

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of a quarter of a million numbers at a time."""
        random = np.random.default_rng(self._seed)
        left = math.prod(self.shape.numpy())
        while left > 0:
            count = min(left, _PIECE_ELEMENTS)
            yield element_bytes(self._draw(random, count), self.dtype)
            left -= count


def element_bytes(elements: Array, dtype: ir.DataType) -> bytes:
    """Return the numbers as a tensor stores them; types below 8 bits are packed."""
    return ir.Tensor(elements.astype(dtype.numpy()), dtype=dtype).tobytes()


def _is_integral(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype == ir.DataType.BOOL


def _check_kind(kind: str, dtype: ir.DataType) -> None:
    word = dtype.name.lower()
    if not _is_integral(dtype) and not dtype.is_floating_point():
        raise RequestError(f"numbers of type {word} cannot be generated; give a value or a .npy file")
    below_zero = kind in ("normal", "uniform_negative")
    if below_zero and (dtype in (ir.DataType.BOOL, ir.DataType.FLOAT8E8M0) or not dtype.is_signed()):
        raise RequestError(f"{kind} generates negative numbers, which {word} cannot represent; use uniform_positive")
    if kind == "zeros" and dtype == ir.DataType.FLOAT8E8M0:
        raise RequestError(f"{word} represents powers of 2 and not 0; use ones")


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
        """Replace numbers that the type would round to 0 by its smallest."""
        drawn = draw(random, count)
        return np.copysign(np.maximum(np.abs(drawn), least), drawn)

    return not_zero


def _largest(dtype: ir.DataType) -> int:
    return 1 if dtype == ir.DataType.BOOL else int(ml_dtypes.iinfo(dtype.numpy()).max)


def _rounded_normal(dtype: ir.DataType) -> _Draw:
    most = _largest(dtype)
    return lambda random, count: np.clip(np.rint(random.standard_normal(count)), -most, most).astype(np.int64)


def _positive(dtype: ir.DataType) -> _Draw:
    least, drawn = 0 if dtype == ir.DataType.BOOL else 1, np.uint64 if dtype == ir.DataType.UINT64 else np.int64
    return lambda random, count: random.integers(least, _largest(dtype), count, drawn, endpoint=True)


_INTEGER: Mapping[str, Callable[[ir.DataType], _Draw]] = {
    "normal": _rounded_normal,
    "zeros": lambda dtype: lambda random, count: np.zeros(count, np.int64),
    "ones": lambda dtype: lambda random, count: np.ones(count, np.int64),
    "uniform_positive": _positive,
    "uniform_negative": lambda dtype: lambda random, count: -random.integers(1, _largest(dtype), count, endpoint=True),
}
