"""What runtimes call element types, in numpy's and ml_dtypes' names."""

from __future__ import annotations

_ORT_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
"""ONNX Runtime's names that differ."""


def dtype_of_ort_element(element: str) -> str:
    """`float` -> `float32`, `bfloat16` -> `bfloat16`."""
    return _ORT_DTYPES.get(element, element)
