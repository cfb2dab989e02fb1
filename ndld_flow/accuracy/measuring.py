"""What is measured on an output besides what always is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measuring:
    """Parameters of the metrics that have some; see `agreement` for the formulas."""

    rtol: float | None = None
    atol: float | None = None
    """Relative and absolute part of the bound that `mismatched` counts by; floats have no `mismatched` without one."""
    topk: int = 5
    """k of `topK`."""
    axis: int = -1
    """Along which the values are one distribution, for `kl`."""
    softmax: bool = False
    """The values are logits: `kl` is of their softmax."""
