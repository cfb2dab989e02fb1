"""Memory formats of TensorRT's tensors by the names of its enum `TensorFormat`: `linear`, `chw32`, `hwc8`.

The inspector writes them as prose that includes the type: `Channel major FP16 format where channel % 8 == 0`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ndld_flow.base.dtype_names import without_dtype

_CODE = re.compile(r"\((?:k)?(\w+)\)")
_CODES = {"nhwc": "hwc", "nchw": "linear"}
"""TensorRT-RTX's name -> name in `TensorFormat`."""
_WIDE = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_VECTORIZED = re.compile(rf"({'|'.join(_WIDE)}) wide channel vectorized")
_MULTIPLE = re.compile(r"channel % (\d+)")
_LONGEST = 40
_LONGEST_TOLD = 200


@lru_cache(maxsize=4096)
def format_of_tensorrt(text: str) -> str:
    """Convert `Row major linear FP32` to `linear`; unknown words are kept without the type; empty for a bare type."""
    lowered = " ".join(text[:_LONGEST_TOLD].lower().split())
    code = _CODE.search(lowered)
    if code:
        return _CODES.get(code[1], code[1])[:_LONGEST]
    space = "d" if "3 spatial dimensions" in lowered else ""
    wide = _VECTORIZED.search(lowered)
    if wide:
        return f"c{space}hw{_WIDE[wide[1]]}"
    if "channel major" in lowered:
        multiple = _MULTIPLE.search(lowered)
        return f"{space}hwc{multiple[1] if multiple else ''}"
    if "linear" in lowered:
        return "linear"
    return without_dtype(lowered).removesuffix("format").strip(" ,.:")[:_LONGEST]
