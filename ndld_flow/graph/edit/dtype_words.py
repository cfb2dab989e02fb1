"""Element types as recipes say them: numpy's names, ONNX's, and the short ones people use."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest

_SHORT = {
    "fp64": ir.DataType.DOUBLE,
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp8": ir.DataType.FLOAT8E4M3FN,
    "fp4": ir.DataType.FLOAT4E2M1,
}


def dtype_of_word(word: str) -> ir.DataType:
    """`float32`, `float`, `FLOAT` and `fp32` are one; `string` is an element type too.

    Raises `RequestError` with the nearest word.
    """
    known = _words()
    if word.lower() not in known:
        raise RequestError(f"there is no element type {word!r}; {suggest(word, known)}")
    return known[word.lower()]


def word_of_dtype(dtype: ir.DataType) -> str:
    """numpy's or ml_dtypes' name: `float32`, `bfloat16`; `string`."""
    return dtype.name.lower() if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) else dtype.numpy().name


def _words() -> dict[str, ir.DataType]:
    dtypes = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED]
    return {word_of_dtype(dtype): dtype for dtype in dtypes} | {d.name.lower(): d for d in dtypes} | _SHORT
