"""Shapes of tensors as pages show them."""

from __future__ import annotations

from functools import lru_cache

from ndld_flow.base.quantities import TIMES


@lru_cache(maxsize=4096)
def shape_text(shape: tuple[int, ...]) -> str:
    """`1x3x320x?` with real multiplication signs, free dimensions as `?`; `scalar` for no dimensions."""
    return TIMES.join("?" if dim < 0 else str(dim) for dim in shape) or "scalar"
