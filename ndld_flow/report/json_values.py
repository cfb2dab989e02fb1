"""What goes into a payload's JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

# What json.dumps takes.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


def rounded(value: float) -> float:
    """Five digits that matter: finer than any clock here. A record may hold NaN, JSON may not: 0 stands for it."""
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0
