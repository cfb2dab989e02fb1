"""The precisions that can be requested for a layer."""

from __future__ import annotations

from typing import Literal, get_args

PRECISION_KEY = "ndld_flow.precision"
"""Key in an ONNX node's `metadata_props` that requests one."""

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int64", "int32", "int8", "int4", "uint8", "bool"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
FLOAT_DTYPES: dict[str, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Precisions that a Cast can produce -> element type."""
