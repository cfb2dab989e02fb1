"""Checks of the values of initializers and Constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.graph.lint.subject import Subject, about
from ndld_flow.models.derived_tensors import byte_pieces
from ndld_flow.models.external_data import tensors_of
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.records.inspection import Finding

_PIECE_BYTES = 2**24
_FP16_MAX = 65504.0
_FP16_TINY = 2.0**-25
"""Values below this round to zero in fp16."""
_SCALAR_SIZE = 16
"""Largest tensor that counts as a constant such as an epsilon, whose loss turns a division into infinity."""
_FLOATS: dict[ir.DataType, str] = {
    ir.DataType.FLOAT: "<f4",
    ir.DataType.DOUBLE: "<f8",
    ir.DataType.FLOAT16: "<f2",
}


def nonfinite_values(subject: Subject) -> Iterator[Finding]:
    """Find NaN and infinity in initializers and Constants."""
    for tensor in _float_tensors(subject):
        nans = infinities = 0
        for piece in _numbers(tensor):
            if not np.isfinite(piece).all():
                nans += int(np.isnan(piece).sum())
                infinities += int(np.isinf(piece).sum())
        if nans:
            yield about("nan_inf", "error", f"{_label(tensor)} holds {nans} NaN of {tensor.size} values")
        if infinities:
            # Attention masks contain minus infinity on purpose.
            yield about("nan_inf", "warning", f"{_label(tensor)} holds {infinities} infinities of {tensor.size} values")


def half_precision_range(subject: Subject) -> Iterator[Finding]:
    """Find values that fp16 cannot represent."""
    for tensor in _float_tensors(subject):
        if tensor.dtype == ir.DataType.FLOAT16:
            continue
        largest = max(
            (float(np.max(np.abs(piece), initial=0, where=np.isfinite(piece))) for piece in _numbers(tensor)),
            default=0.0,
        )
        if largest > _FP16_MAX:
            yield about("fp16_range", "warning", f"{_label(tensor)} reaches {largest:.4g}: infinity in fp16")
        if tensor.size <= _SCALAR_SIZE:
            small = [v for piece in _numbers(tensor) for v in piece.tolist() if 0 < abs(v) < _FP16_TINY]
            if small:
                yield about("fp16_range", "warning", f"{_label(tensor)} is {small[0]:.4g}: zero in fp16")


def _float_tensors(subject: Subject) -> Iterator[ir.TensorProtocol]:
    if subject.model is not None:
        yield from (t for t in tensors_of(subject.model) if t.dtype in _FLOATS and not isinstance(t, SparseInitializer))


def _numbers(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    for piece in byte_pieces(tensor, _PIECE_BYTES):
        yield np.frombuffer(piece, dtype=_FLOATS[tensor.dtype])


def _label(tensor: ir.TensorProtocol) -> str:
    return f"initializer {tensor.name!r}" if tensor.name else "a Constant"
