"""What weights lost in the types they were given, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.models.float_tensors import FORMATS, Loss

_NAMED = 10
"""So many are named."""


def loss_notes(losses: Sequence[Loss]) -> list[str]:
    """For each precision: which weights have values that are beyond it, and which that vanished in it."""
    return [note for form in FORMATS.values() for note in _of_precision([x for x in losses if x.format == form])]


def _of_precision(losses: Sequence[Loss]) -> Iterator[str]:
    clamped = [loss for loss in losses if loss.clamped]
    if clamped:
        count, form = sum(loss.clamped for loss in clamped), clamped[0].format
        names = _listed([f"{loss.name} (largest {loss.largest:.4g})" for loss in clamped])
        yield f"{count} weight values are beyond {form.precision}'s {form.largest:.5g} and were clamped, in {names}"
    vanished = [loss for loss in losses if loss.vanished]
    if vanished:
        count, form = sum(loss.vanished for loss in vanished), vanished[0].format
        names = _listed([f"{loss.name} ({loss.vanished} of {loss.size})" for loss in vanished])
        yield f"{count} weight values are too small for {form.precision} and became 0 or its smallest, in {names}"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
