"""Do the tensors of a model hold what they say? Asked before anything reads them."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import short_name
from ndld_flow.models.sparse_tensors import SparseInitializer

_COPIED_BYTES = 2**16
"""Asking for raw data copies them: of more, the size of the whole message tells their length."""
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Where elements lie that are not raw data; those of all other types in `int32_data`."""
_WHAT_TO_DO = "The model is damaged: export or download it again."


def check_tensor(path: Path, tensor: ir.TensorProtocol) -> None:
    """Raises `ModelError` for a tensor without a type, with a negative dimension, or of another size than it says.

    One that holds nothing at all passes: models without their weights can still be looked at.
    """
    where = f"{path}: tensor {short_name(tensor.name or '')!r}"
    _element_count(where, tensor.dtype, tuple(tensor.shape.numpy()))
    if isinstance(tensor, SparseInitializer):
        for proto in (tensor.proto.values, tensor.proto.indices):
            _check_proto(where, proto)
    elif isinstance(tensor, ir.serde.TensorProtoTensor):
        _check_proto(where, tensor.raw)
    elif isinstance(tensor, ir.StringTensor) and len(tensor.raw) != tensor.size:
        raise ModelError(f"{where} holds {len(tensor.raw)} strings, its shape {tensor.size}. {_WHAT_TO_DO}")


def _element_count(where: str, dtype: ir.DataType, dims: tuple[int, ...]) -> int:
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"{where} has no element type. {_WHAT_TO_DO}")
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{where} has a negative dimension. {_WHAT_TO_DO}")
    return math.prod(dims)


def _check_proto(where: str, proto: onnx.TensorProto) -> None:
    dtype = ir.DataType(proto.data_type)
    count = _element_count(where, dtype, tuple(proto.dims))
    if proto.HasField("raw_data"):
        expected, unit = -(-count * dtype.bitwidth // 8), "bytes"
        held = _raw_length(proto, expected)
    else:
        each = 8 // dtype.bitwidth if dtype.bitwidth in (2, 4) else 1
        expected, unit = -(-count // each) * (2 if dtype.name.startswith("COMPLEX") else 1), "numbers"
        held = len(getattr(proto, _FIELDS.get(dtype, "int32_data"))) or expected
    if held != expected:
        raise ModelError(f"{where} holds {held} {unit}, its type and shape need {expected}. {_WHAT_TO_DO}")


def _raw_length(proto: onnx.TensorProto, expected: int) -> int:
    """Bytes of the raw data; where they are many, names and dimensions may hide that they are too many."""
    whole = proto.ByteSize()
    if expected <= whole <= expected + _COPIED_BYTES and expected > _COPIED_BYTES:
        return expected
    return whole if whole > 2 * _COPIED_BYTES else len(proto.raw_data)
