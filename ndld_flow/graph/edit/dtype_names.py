"""Names of element types in recipes: numpy's, ONNX's, and common abbreviations."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.models.tensor_statistics import dtype_name

_SHORT = {
    "fp64": ir.DataType.DOUBLE,
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp8": ir.DataType.FLOAT8E4M3FN,
    "fp4": ir.DataType.FLOAT4E2M1,
}


def parse_dtype(name: str) -> ir.DataType:
    """Return the element type of a name. `float32`, `float`, `FLOAT` and `fp32` are the same type.

    Raises `RequestError` with the nearest name.
    """
    dtypes = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED]
    known = {dtype_name(dtype): dtype for dtype in dtypes} | {dtype.name.lower(): dtype for dtype in dtypes} | _SHORT
    if name.lower() not in known:
        raise RequestError(f"there is no element type {name!r}; {suggest(name, known)}")
    return known[name.lower()]
