"""What goes into a payload's JSON, and how a page holds it."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

# What json.dumps takes.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


def packed(data: Mapping[str, object]) -> str:
    """JSON, gzip, base64: letters that can close no tag. Equal data give equal bytes."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, compresslevel=4, mtime=0)).decode()


def rounded(value: float) -> float:
    """Five digits that matter: finer than any clock here. A record may hold NaN, JSON may not: 0 stands for it."""
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0
