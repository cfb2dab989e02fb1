"""How much two models' probabilities diverge: the Kullback-Leibler divergence (Kullback and Leibler, 1951)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ndld_flow.accuracy.agreement_formulas import SMALLEST
from ndld_flow.accuracy.measuring import Measuring
from ndld_flow.models.tensors import Array
from ndld_flow.samples.generated_values import is_float

_SUM_MAY_BE_OFF = 0.01
"""fp16 and int8 outputs of a softmax add up to 1 only so nearly."""
_CHUNK = 1 << 18


@dataclass
class Divergence:
    """Rows that are distributions, and the sum of their divergences in nats."""

    rows: int = 0
    total: float = 0.0
    meaningless: bool = False
    """The reference's values are no distribution."""

    def take(self, other: Divergence) -> None:
        self.rows += other.rows
        self.total += other.total
        self.meaningless |= other.meaningless

    def metrics(self) -> dict[str, float]:
        return {"kl": self.total / self.rows} if self.rows and not self.meaningless else {}


def diverge_rows(reference: Array, candidate: Array, measuring: Measuring) -> Divergence:
    """The divergence of every row along the axis; rows with NaN or +infinity (without softmax: any infinity) are left
    out, on either side.
    """
    axis, dims = measuring.axis, reference.ndim
    if not -dims <= axis < dims or reference.shape[axis] < 2 or not reference.size:
        return Divergence(meaningless=True)
    if not (is_float(reference.dtype) and is_float(candidate.dtype)):
        return Divergence(meaningless=True)
    found = Divergence()
    for r, c in _row_chunks(reference, candidate, axis):
        p, q = (_softmax(r), _softmax(c)) if measuring.softmax else (r, c)
        usable = np.isfinite(p).all(axis=-1) & np.isfinite(q).all(axis=-1)
        p, q = p[usable], q[usable]
        if (p < 0).any() or (np.abs(p.sum(axis=-1) - 1) > _SUM_MAY_BE_OFF).any():
            return Divergence(meaningless=True)
        found.take(Divergence(len(p), float(_divergences(p, q).sum())))
    return found


def _row_chunks(reference: Array, candidate: Array, axis: int) -> Iterator[tuple[Array, Array]]:
    """Float64 rows, a bounded number of elements at a time."""
    size = reference.shape[axis]
    r, c = (np.moveaxis(array, axis, -1).reshape(-1, size) for array in (reference, candidate))
    step = max(1, _CHUNK // size)
    for start in range(0, len(r), step):
        yield r[start : start + step].astype(np.float64), c[start : start + step].astype(np.float64)


def _softmax(logits: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _divergences(p: Array, q: Array) -> Array:
    """sum(p log(p / q)) of every row, both scaled to a sum of 1; a q below `SMALLEST` counts as that."""
    p, q = _scaled(p), np.maximum(_scaled(np.maximum(q, 0.0)), SMALLEST)
    # 0 log 0 is 0. Rounding, and q that were raised, may make it a little less than 0.
    terms = p * (np.log(np.maximum(p, SMALLEST)) - np.log(q))
    found: Array = np.maximum(terms.sum(axis=-1), 0.0)
    return found


def _scaled(rows: Array) -> Array:
    sums = rows.sum(axis=-1, keepdims=True)
    scaled: Array = np.divide(rows, sums, out=np.zeros_like(rows), where=sums > 0)
    return scaled
