"""Matched layers of compared profiles: times for the page's script, rows to print, and changes by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import MINUS, change, milliseconds
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.comparison import LayerRow, LayerVerdict, ProfileComparison
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.measured import UNKNOWN
from ndld_flow.report.tables import ABSENT

_ROWS_WITHOUT_SCRIPT = 20


@dataclass(frozen=True)
class AlignedRow:
    """One row relative to the base, for paper and pages without a script."""

    name: str
    type: str
    base_ms: float | None
    """None if the base has no such layer."""
    candidate_ms: float | None
    delta: str
    """`-411 µs`"""
    change: str
    precision: str
    """`float32 → float16`"""
    method: str
    verdict: str


def check_rows(comparison: ProfileComparison, profiles: Sequence[Profile]) -> None:
    """Raise IndexError for positions of layers that a profile does not have."""
    for row in comparison.rows:
        for profile, places in zip(profiles, row.layers, strict=True):
            if places and not 0 <= min(places) <= max(places) < len(profile.layers):
                raise IndexError(f"a row of {comparison.name} names a layer that its profile does not have")


def largest_changes(
    comparison: ProfileComparison, profiles: Sequence[Profile], candidate: int = 1
) -> tuple[AlignedRow, ...]:
    """Return the rows of one candidate with the largest changes from the base."""
    if len(profiles) <= candidate:
        return ()
    changes = layer_changes(comparison, profiles, candidate)[:_ROWS_WITHOUT_SCRIPT]
    return tuple(_aligned(comparison.rows[change.row], change, candidate) for change in changes)


def _aligned(row: LayerRow, changed: LayerChange, candidate: int) -> AlignedRow:
    shown = changed.base or changed.candidate
    both = bool(changed.base and changed.candidate)
    before, after = (
        "+".join(dict.fromkeys(visible_name(layer.precision or UNKNOWN) for layer in layers))
        for layers in (changed.base, changed.candidate)
    )
    delta, verdict = changed.delta_ms, changed.verdict
    return AlignedRow(
        name=short_name(changed.name),
        type=short_name(" + ".join(dict.fromkeys(layer.type for layer in shown)), 60),
        base_ms=changed.base_ms if changed.base else None,
        candidate_ms=changed.candidate_ms if changed.candidate else None,
        delta=f"{'+' if delta > 0 else MINUS if delta < 0 else ''}{milliseconds(abs(delta))}",
        change=change(changed.base_ms, changed.candidate_ms) if both else ("new" if changed.candidate else "gone"),
        precision=short_name(before if before == after else f"{before or ABSENT} → {after or ABSENT}", 60),
        method=row.methods[candidate] if both else "unmatched",
        verdict=verdict.verdict if verdict else "",
    )


@dataclass(frozen=True)
class LayerChange:
    """One row for one candidate."""

    row: int
    base: tuple[Layer, ...]
    candidate: tuple[Layer, ...]
    base_ms: float
    candidate_ms: float
    verdict: LayerVerdict | None
    """None if one side has no layer or no times."""

    @property
    def delta_ms(self) -> float:
        return self.candidate_ms - self.base_ms

    @property
    def name(self) -> str:
        """Name of the base's layers, or of the candidate's if the base has none."""
        return " + ".join(layer.name for layer in self.base or self.candidate)


def layer_changes(
    compared: ProfileComparison, profiles: Sequence[Profile], candidate: int | None = None
) -> list[LayerChange]:
    """Return all rows with layers of the base or the candidate (default: the last), the largest change first."""
    candidate = len(profiles) - 1 if candidate is None else candidate
    verdicts = {verdict.row: verdict for verdict in compared.layer_verdicts if verdict.candidate == candidate}
    times = [profile.layer_times for profile in profiles]
    changes = []
    for number, row in enumerate(compared.rows):
        of_base, of_candidate = row.layers[0], row.layers[candidate]
        if of_base or of_candidate:
            change = LayerChange(
                row=number,
                base=tuple(profiles[0].layers[index] for index in of_base),
                candidate=tuple(profiles[candidate].layers[index] for index in of_candidate),
                base_ms=times[0].sum_ms(of_base),
                candidate_ms=times[candidate].sum_ms(of_candidate),
                verdict=verdicts.get(number),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: -abs(change.delta_ms))
