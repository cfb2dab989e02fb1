"""What a sanitize is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SanitizeOptions:
    """Settings of the step, as plain values."""

    fold_constants: bool = True
    fold_size_threshold: int = 64 * 2**20
    """Bytes; larger results stay computed, larger operands are not read."""
    passes: int | None = None
    """None goes on until nothing changes."""
    remove_unused: bool = True
    deduplicate: bool = True
    simplify: bool = True
    fuse: bool = True
    inline_functions: bool = False
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
