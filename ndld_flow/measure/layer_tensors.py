"""What a layer reads and writes: ONNX Runtime's shapes, with the names and the weights of the model that it ran."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ndld_flow.models.tensors import numpy_dtype
from ndld_flow.profiles.read.onnxruntime_profile import TypeAndShape
from ndld_flow.records.profile import TensorInfo


@dataclass(frozen=True)
class Operand:
    """One input or output, where its node has it."""

    info: TensorInfo
    is_weight: bool = False

    @property
    def bytes(self) -> int:
        """0 for strings, and for what is no tensor."""
        dtype = numpy_dtype(self.info.dtype)
        if dtype is None:
            return 0
        bits = ir.DataType.from_numpy(dtype).bitwidth  # numpy keeps four bits in a byte, ONNX two in one
        return (prod(self.info.shape) * bits + 7) // 8


Operands = tuple["Operand | None", ...]
"""By position; None for an optional one that is left out."""


@dataclass(frozen=True)
class Alignment:
    """The tensors of a node, and whether some of its weights are missing in the profile."""

    operands: Operands
    packed: bool = False
    """ONNX Runtime does not list weights that it laid out anew for its kernel while loading."""

    @property
    def known(self) -> tuple[Operand, ...]:
        """Without those that are left out."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(operand.info for operand in self.known)

    @property
    def shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """By position."""
        return tuple(None if operand is None else operand.info.shape for operand in self.operands)


def align(listed: Sequence[TypeAndShape], values: Sequence[ir.Value | None] | None) -> Alignment:
    """Give the tensors that a profile lists their places in the node that ran; None for a node that is not known.

    The profile leaves out optional tensors that are not there, and weights that were packed; where the rest does not
    fit the node, it is returned as it is listed, without names.
    """
    if values is not None:
        aligned = _aligned(listed, values)
        if aligned is not None:
            return aligned
    return Alignment(tuple(Operand(TensorInfo(name="", dtype=dtype, shape=shape)) for dtype, shape in listed))


def _aligned(listed: Sequence[TypeAndShape], values: Sequence[ir.Value | None]) -> Alignment | None:
    waiting = deque(listed)
    operands: list[Operand | None] = []
    packed = False
    for value in values:
        if value is None or not value.name:
            operands.append(None)
            continue
        weight = _weight(value)
        if waiting and (weight is None or waiting[0] == weight):
            dtype, shape = waiting.popleft()
        elif weight is not None:
            dtype, shape = weight
            packed = True
        else:
            return None
        info = TensorInfo(name=value.name, dtype=dtype, shape=shape)
        operands.append(Operand(info, is_weight=weight is not None))
    return None if waiting else Alignment(tuple(operands), packed)


def _weight(value: ir.Value) -> TypeAndShape | None:
    """dtype and shape of a constant; None for what is computed."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    shape = tensor.shape.numpy()
    return str(tensor.dtype.numpy().name), tuple(int(size) for size in shape)
