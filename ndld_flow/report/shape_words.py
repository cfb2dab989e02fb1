"""Displayed shapes of tensors."""

from __future__ import annotations

from functools import lru_cache

from ndld_flow.base.quantities import TIMES


@lru_cache(maxsize=4096)
def shape_text(shape: tuple[int, ...]) -> str:
    """Return `1x3x320x?` with multiplication signs and `?` for dynamic dimensions; `scalar` without dimensions."""
    return TIMES.join("?" if dim < 0 else str(dim) for dim in shape) or "scalar"
