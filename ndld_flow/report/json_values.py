"""Encode data for a page."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

# The values that json.dumps accepts.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


def packed(data: Mapping[str, object]) -> str:
    """Encode data as JSON, gzip and base64, which cannot close an HTML tag. Equal data give equal bytes."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, compresslevel=4, mtime=0)).decode()


def rounded(value: float) -> float:
    """Round to five significant digits, finer than any clock; NaN, which JSON does not support, becomes 0."""
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0
