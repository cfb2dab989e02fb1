"""Element types: the names that runtimes use, translated to those of numpy and ml_dtypes."""

from __future__ import annotations

import re

_ORT_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}
"""ONNX Runtime's names that differ."""

_TENSORRT_DTYPES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "bool": "bool",
}
_TENSORRT_WORD = re.compile(rf"(?<![a-z0-9])k?({'|'.join(_TENSORRT_DTYPES)})(?![a-z0-9])")

_BITS = {
    "complex128": 128,
    "complex64": 64,
    "float64": 64,
    "int64": 64,
    "uint64": 64,
    "float32": 32,
    "tf32": 32,
    "int32": 32,
    "uint32": 32,
    "float16": 16,
    "bfloat16": 16,
    "int16": 16,
    "uint16": 16,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "int2": 2,
    "uint2": 2,
}
"""8 for all other numeric types."""
_BYTE_WIDE = re.compile(r"u?int8|bool|float8_\w+")


def dtype_of_ort_element(element: str) -> str:
    """Return the numpy name of an ONNX Runtime element type: `float` -> `float32`, `bfloat16` -> `bfloat16`."""
    return _ORT_DTYPES.get(element, element)


def dtype_of_tensorrt(text: str) -> str:
    """Return the element type in a TensorRT format, empty if it has none.

    `Channel major FP16 format where channel % 8 == 0` -> `float16`; `Half` -> `float16`.
    """
    match = _TENSORRT_WORD.search(text.lower())
    return _TENSORRT_DTYPES[match[1]] if match else ""


def without_dtype(text: str) -> str:
    """Return the words of a TensorRT format in lower case, without element types."""
    return " ".join(_TENSORRT_WORD.sub("", text).split())


def bits_of_dtype(dtype: str) -> int | None:
    """Return the bits of one element; None for strings and unknown types."""
    return 8 if _BYTE_WIDE.fullmatch(dtype) else _BITS.get(dtype)
