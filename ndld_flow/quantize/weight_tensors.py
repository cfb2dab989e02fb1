"""Weights that are scaled and quantized piece by piece while they are written.

ONNX Runtime's quantizers read all weights into memory, but derive a scale only from the extremes of a channel. So they
get a small stand-in with the same extremes, and the weight itself is quantized with their scales while it is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnxruntime.quantization.quant_utils import quantize_nparray

from ndld_flow.models.lazy_tensors import Array, DerivedTensor, TensorFromSource, byte_pieces, element_bytes

_PIECE_ELEMENTS = 2**20


class ScaledTensor(DerivedTensor):
    """A float tensor multiplied by a number."""

    def __init__(self, source: ir.TensorProtocol, factor: float, name: str) -> None:
        super().__init__(source, source.dtype, name)
        self._factor = factor

    def convert(self, piece: Array) -> Array:
        return (piece * np.float32(self._factor)).astype(piece.dtype)


class ChannelScaledTensor(TensorFromSource):
    """A float tensor with each index of one axis multiplied by a factor of its own."""

    def __init__(self, source: ir.TensorProtocol, factors: Array, axis: int, name: str) -> None:
        super().__init__(source, source.dtype, source.shape.numpy(), name)
        self._factors, self._axis = factors.reshape(1, -1, 1), axis

    def pieces(self) -> Iterator[bytes]:
        for first, values in channel_pieces(self.source, self._axis):
            scaled = values * self._factors[:, first : first + values.shape[1]]
            yield scaled.astype(values.dtype).tobytes()


class QuantizedTensor(TensorFromSource):
    """A float32 weight in integers."""

    def __init__(
        self, source: ir.TensorProtocol, dtype: ir.DataType, scale: Array, zero_point: Array, axis: int | None
    ) -> None:
        """`scale` and `zero_point` have one element for each index of `axis`, or one element without an axis."""
        super().__init__(source, dtype, source.shape.numpy(), source.name or "")
        self._scale, self._zero_point = scale.reshape(1, -1, 1), zero_point.reshape(1, -1, 1)
        self._axis = axis

    def pieces(self) -> Iterator[bytes]:
        for first, values in channel_pieces(self.source, self._axis):
            last = first + values.shape[1]
            scale, zero_point = self._scale[:, first:last], self._zero_point[:, first:last]
            integers = quantize_nparray(self.dtype.value, values, scale, zero_point)
            yield element_bytes(integers.ravel(), self.dtype)


def channel_pieces(tensor: ir.TensorProtocol, axis: int | None) -> Iterator[tuple[int, Array]]:
    """Yield (first channel, values of shape [outer, channels, inner]) in the order of the elements.

    Without an axis there is one channel. A piece has an even number of elements, so that those of 4 bits fill bytes,
    except the last one.
    """
    shape = tensor.shape.numpy()
    channels = 1 if axis is None else shape[axis]
    inner = 1 if axis is None else math.prod(shape[axis + 1 :])
    outer = tensor.size // max(channels * inner, 1)
    kind = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    first = 0
    # Either some channels of all that there is once, or all channels some times.
    split = outer == 1 and axis is not None
    block = inner if split else channels * inner
    count = 2 * max(1, _PIECE_ELEMENTS // max(2 * block, 1))
    for data in byte_pieces(tensor, count * block * kind.itemsize):
        values = np.frombuffer(data, kind)
        yield first, values.reshape(1, -1, inner) if split else values.reshape(-1, channels, inner)
        first += values.size // inner if split else 0


def stand_in(tensor: ir.TensorProtocol, axis: int | None, name: str) -> ir.Tensor[Array]:
    """Return a tensor with the extremes of each channel of `axis`, of the same rank and number of channels.

    Without an axis, it has the extremes of all values.
    """
    shape = tensor.shape.numpy()
    lows = np.full(1 if axis is None else shape[axis], np.inf, np.float32)
    highs = -lows
    for first, values in channel_pieces(tensor, axis):
        part = slice(first, first + values.shape[1])
        lows[part] = np.minimum(lows[part], values.min(axis=(0, 2)))
        highs[part] = np.maximum(highs[part], values.max(axis=(0, 2)))
    extremes = np.stack([lows, highs])
    if axis is None:
        return ir.Tensor(extremes.reshape([2] + [1] * (len(shape) - 1)), name=name)
    position = 0 if axis else 1
    small = [1] * len(shape)
    small[axis], small[position] = shape[axis], 2
    return ir.Tensor((extremes if axis else extremes.T).reshape(small).copy(), name=name)
