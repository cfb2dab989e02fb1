"""Tensors that a layer reads and writes: ONNX Runtime's shapes, with names and weights of the model that ran."""

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
    """One input or output of a node."""

    info: TensorInfo
    is_weight: bool = False

    @property
    def bytes(self) -> int:
        """Return the bytes of its values; 0 for strings and non-tensors."""
        dtype = numpy_dtype(self.info.dtype)
        if dtype is None:
            return 0
        bits = ir.DataType.from_numpy(dtype).bitwidth  # numpy keeps four bits in a byte, ONNX two in one
        return (prod(self.info.shape) * bits + 7) // 8


Operands = tuple["Operand | None", ...]
"""Operands by position; None for an omitted optional one."""


@dataclass(frozen=True)
class Alignment:
    """The tensors of a node, and whether some of its weights are missing in the profile."""

    operands: Operands
    packed: bool = False
    """ONNX Runtime does not list weights that it repacked for its kernel while loading."""

    @property
    def known(self) -> tuple[Operand, ...]:
        """Return the operands except omitted ones."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(operand.info for operand in self.known)

    @property
    def shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return the shapes by position."""
        return tuple(None if operand is None else operand.info.shape for operand in self.operands)


def align(listed: Sequence[TypeAndShape], values: Sequence[ir.Value | None] | None) -> Alignment:
    """Assign the tensors in a profile to the ports of the node that ran; None for an unknown node.

    The profile leaves out missing optional tensors and packed weights; where the rest does not match the node, it is
    returned as listed, without names.
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
    """Return dtype and shape of a constant; None for a computed value."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    shape = tensor.shape.numpy()
    return str(tensor.dtype.numpy().name), tuple(int(size) for size in shape)
