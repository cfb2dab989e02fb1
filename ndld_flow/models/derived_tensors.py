"""Tensors computed from other tensors, piece by piece, while they are written.

A weight of any size on disk is read, converted and written in a few megabytes of memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
_PIECE_BYTES = 2**20


class Writable(Protocol):
    """An object that bytes can be written to."""

    def write(self, data: Any, /) -> object: ...  # noqa: ANN401 - bytes or any other buffer


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes are computed while they are written and never held all at once."""

    def __init__(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(self._materialise, dtype, ir.Shape(shape), name=name)

    @property
    @abstractmethod
    def on_disk(self) -> bool:
        """True if its data belong in an external data file."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """Yield the elements' bytes in pieces of any size."""

    def tofile(self, file: Writable) -> None:
        """Write the elements' bytes, piece by piece."""
        for piece in self.pieces():
            file.write(piece)

    def tobytes(self) -> bytes:
        return b"".join(self.pieces())

    def _materialise(self) -> ir.Tensor[Array] | ir.PackedTensor[Array]:
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(np.frombuffer(self.tobytes(), np.uint8), self.dtype, shape=shape, name=self.name)
        flat = np.frombuffer(self.tobytes(), dtype=self.dtype.numpy())
        return ir.Tensor(flat.reshape(shape), dtype=self.dtype, name=self.name)


class DerivedTensor(StreamedTensor):
    """A tensor of the same shape as its source, computed elementwise from it."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> None:
        super().__init__(dtype, source.shape.numpy(), name)
        self.source = source

    @abstractmethod
    def convert(self, piece: Array) -> Array:
        """Convert flat elements of the source to as many elements of this tensor's dtype."""

    @property
    def on_disk(self) -> bool:
        """True if the source's data are external; this tensor's should be too."""
        return isinstance(self.source, ir.ExternalTensor) or (
            isinstance(self.source, StreamedTensor) and self.source.on_disk
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield the converted bytes; a source on disk is read in pieces."""
        for piece in array_pieces(self.source):
            yield self.convert(piece).tobytes()


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
