"""Weights in fp16, and what they lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ndld_flow.backends.models.derived_tensors import Array, DerivedTensor, Writable, read_pieces
from ndld_flow.backends.models.sparse_tensors import SparseInitializer

MAX_HALF = 65504.0
"""Largest finite fp16 value."""
MIN_HALF = 2.0**-24
"""Smallest positive fp16 value (subnormal)."""


@dataclass
class Loss:
    """What one tensor loses in fp16."""

    name: str
    size: int
    """Number of values."""
    clamped: int = 0
    """Finite values beyond fp16's range; they become its largest value, not infinity."""
    vanished: int = 0
    """Values other than 0 that are nearer to 0 than to fp16's smallest."""
    largest: float = 0.0
    """Largest finite absolute value, in fp32."""


class HalfTensor(DerivedTensor):
    """An fp32 tensor in fp16, rounded to nearest.

    Finite values beyond the range are clamped. In scalars and per-channel vectors a value other than 0 never becomes
    0: they are divisors and epsilons. In weight matrices it may: rounding to nearest is the smaller error there.
    """

    def __init__(self, source: ir.TensorProtocol, name: str, writing: Callable[[str], None]) -> None:
        super().__init__(source, ir.DataType.FLOAT16, name)
        self._writing = writing
        self.loss = Loss(name, self.size)
        self._keeps_nonzero = sum(size != 1 for size in self.source.shape) <= 1

    def tofile(self, file: Writable) -> None:
        self._writing(self.name or "")
        self.loss = Loss(self.name or "", self.size)
        super().tofile(file)

    def convert(self, piece: Array) -> Array:
        """fp32 elements -> fp16 elements; what they lose is added to `loss`."""
        return half_of(piece, self._keeps_nonzero, self.loss)


def half_of(values: Array, keeps_nonzero: bool, loss: Loss) -> Array:
    """Round to fp16, clamp to its range, and add up what was lost."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not values.size:
        return half
    largest = np.max(np.abs(values))
    if not largest <= MAX_HALF:  # infinity and NaN come here too, and stay what they are
        largest = _clamp(values, half, loss)
    loss.largest = max(loss.largest, float(largest))
    lost = np.count_nonzero(values) - np.count_nonzero(half)
    if lost:
        loss.vanished += int(lost)
        if keeps_nonzero:
            gone = (half == 0) & (values != 0)
            half[gone] = np.copysign(MIN_HALF, values[gone]).astype(np.float16)
    return half


def _clamp(values: Array, half: Array, loss: Loss) -> float:
    """Put finite values back into range; return the largest of them."""
    finite = np.isfinite(values)
    beyond = finite & (np.abs(values) > MAX_HALF)
    half[beyond] = np.copysign(MAX_HALF, values[beyond])
    loss.clamped += int(np.count_nonzero(beyond))
    return float(np.max(np.abs(values), initial=0.0, where=finite))


def sparse_half(tensor: SparseInitializer, name: str) -> tuple[SparseInitializer, Loss]:
    """A sparse fp32 initializer in fp16, and what it lost."""
    proto = onnx.SparseTensorProto.FromString(tensor.proto.SerializeToString())
    values = numpy_helper.to_array(tensor.proto.values)
    loss = Loss(name, values.size)
    proto.values.CopyFrom(numpy_helper.from_array(half_of(values, False, loss), name))
    return SparseInitializer(proto), loss


_INFINITE = 1e30
_INFINITE_SCALAR = 1e9
"""Larger ones stand for infinity in masks: clamping them is what is wanted."""


@dataclass
class Survey:
    """The range of a tensor's values."""

    count: int = 0
    """Values other than 0."""
    largest: float = 0.0
    """Largest absolute value that does not stand for infinity."""
    small: int = 0
    """Values other than 0 whose absolute value is below the asked limit."""


def survey(tensor: ir.TensorProtocol, min_abs: float) -> Survey:
    """Look at every value of an fp32 tensor, in pieces."""
    found = Survey()
    end = _INFINITE_SCALAR if tensor.size == 1 else _INFINITE

    def look(piece: Array) -> None:
        size = np.abs(piece)
        found.count += int(np.count_nonzero(size))
        found.small += int(np.count_nonzero((size < min_abs) & (size > 0)))
        found.largest = max(found.largest, float(np.max(size, initial=0.0, where=size < end)))

    read_pieces(tensor, look)
    return found
