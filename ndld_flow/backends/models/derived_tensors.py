"""Tensors computed from other tensors, piece by piece, while they are written.

A weight of any size on disk is read, changed and written again within a few megabytes of memory.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
_PIECE_BYTES = 2**20


class Writable(Protocol):
    """Something bytes can be written to."""

    def write(self, data: Any, /) -> object: ...  # noqa: ANN401 - bytes or any other buffer


class StreamedTensor(ir.LazyTensor):
    """A tensor whose bytes are computed while they are written, and never all held."""

    def __init__(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        super().__init__(self._computed, dtype, ir.Shape(shape), name=name)

    @property
    @abstractmethod
    def on_disk(self) -> bool:
        """Whether its data belong into a file beside the model."""

    @abstractmethod
    def tofile(self, file: Writable) -> None:
        """Write the elements' bytes, piece by piece."""

    def tobytes(self) -> bytes:
        buffer = io.BytesIO()
        self.tofile(buffer)
        return buffer.getvalue()

    def _computed(self) -> ir.Tensor[Array] | ir.PackedTensor[Array]:
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(np.frombuffer(self.tobytes(), np.uint8), self.dtype, shape=shape, name=self.name)
        flat = np.frombuffer(self.tobytes(), dtype=self.dtype.numpy())
        return ir.Tensor(flat.reshape(shape), dtype=self.dtype, name=self.name)


class DerivedTensor(StreamedTensor):
    """A tensor of the same shape as another, whose elements are computed one by one from that one's."""

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> None:
        super().__init__(dtype, source.shape.numpy(), name)
        self.source = source

    @abstractmethod
    def convert(self, piece: Array) -> Array:
        """Elements of the source, flat -> elements of this tensor, of its dtype and as many."""

    @property
    def on_disk(self) -> bool:
        """Whether the source's data lie outside the model: then this tensor's should too."""
        return isinstance(self.source, ir.ExternalTensor) or (
            isinstance(self.source, StreamedTensor) and self.source.on_disk
        )

    def tofile(self, file: Writable) -> None:
        """Write the elements' bytes, reading the source in pieces where it lies on disk."""
        read_pieces(self.source, lambda piece: file.write(self.convert(piece).tobytes()))


def read_pieces(tensor: ir.TensorProtocol, take: Callable[[Array], object]) -> None:
    """Give `take` the elements of a tensor, flat and in order, in pieces of about a megabyte."""
    sink = _Pieces(np.dtype(tensor.dtype.numpy()), take)
    if hasattr(tensor, "tofile"):
        tensor.tofile(sink)
    else:
        sink.write(tensor.tobytes())


class _Pieces:
    """A file to write to, that hands on what it gets as arrays."""

    def __init__(self, dtype: np.dtype[Any], take: Callable[[Array], object]) -> None:
        self.dtype = dtype
        self.take = take
        self.rest = b""

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes or any other buffer
        view = memoryview(data).cast("B") if not self.rest else memoryview(self.rest + bytes(data))
        whole = len(view) // self.dtype.itemsize * self.dtype.itemsize
        for start in range(0, whole, _PIECE_BYTES):
            self.take(np.frombuffer(view[start : min(start + _PIECE_BYTES, whole)], dtype=self.dtype))
        self.rest = bytes(view[whole:])
        return len(data)
