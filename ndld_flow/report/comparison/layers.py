"""Matched layers of compared profiles: times for the page's script, rows to print, and changes by size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from ndld_flow.base.quantities import MINUS, change, milliseconds
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.comparison import LayerRow, LayerVerdict, ProfileComparison
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.collect_layers import UNKNOWN
from ndld_flow.report.comparison.verdicts import ABSENT

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
    confidence: float
    verdict: str
    q_value: float | None


class LayerTimes:
    """Times of the layers of one profile: the median over process runs of their medians."""

    def __init__(self, profile: Profile) -> None:
        self.layers = profile.layers
        ends = list(pairwise([0, *accumulate(profile.layer_runs)]))
        self.medians_ms = tuple(_typical_ms(layer, ends) for layer in profile.layers)

    def sum_ms(self, places: Sequence[int]) -> float | None:
        """Return the sum of these layers; None without layers."""
        return sum(self.medians_ms[place] for place in places) if places else None


def collect_aligned(comparison: ProfileComparison, profiles: Sequence[Profile]) -> tuple[LayerTimes, ...]:
    """Return the layer times of each profile. Raises IndexError for positions that a profile does not have."""
    times = tuple(LayerTimes(profile) for profile in profiles)
    for row in comparison.rows:
        for time, places in zip(times, row.layers, strict=True):
            if places and not 0 <= min(places) <= max(places) < len(time.layers):
                raise IndexError(f"a row of {comparison.name} names a layer that its profile does not have")
    return times


def largest_changes(
    comparison: ProfileComparison, times: Sequence[LayerTimes], candidate: int = 1
) -> tuple[AlignedRow, ...]:
    """Return the rows of one candidate with the largest changes from the base."""
    if len(times) <= candidate:
        return ()
    deltas = [(abs(_delta(row, times, candidate)), place) for place, row in enumerate(comparison.rows)]
    largest = sorted(deltas, key=lambda delta: (-delta[0], delta[1]))[:_ROWS_WITHOUT_SCRIPT]
    return tuple(_aligned(comparison, times, candidate, place) for _, place in largest)


def _typical_ms(layer: Layer, ends: Sequence[tuple[int, int]]) -> float:
    """Return the median without impossible times; 0 for a layer that was not measured."""
    cuts = ends or [(0, len(layer.samples_ms))]
    parts = ([ms for ms in layer.samples_ms[start:end] if 0 <= ms < math.inf] for start, end in cuts)
    medians = [statistics.median(part) for part in parts if part]
    return statistics.median(medians) if medians else 0.0


def _delta(row: LayerRow, times: Sequence[LayerTimes], candidate: int) -> float:
    return (times[candidate].sum_ms(row.layers[candidate]) or 0.0) - (times[0].sum_ms(row.layers[0]) or 0.0)


def _aligned(comparison: ProfileComparison, times: Sequence[LayerTimes], candidate: int, place: int) -> AlignedRow:
    row = comparison.rows[place]
    base_ms, candidate_ms = times[0].sum_ms(row.layers[0]), times[candidate].sum_ms(row.layers[candidate])
    verdict = next((v for v in comparison.layer_verdicts if v.row == place and v.candidate == candidate), None)
    shown = [times[k].layers[i] for k in (0, candidate) for i in row.layers[k]]
    precisions = [[times[k].layers[i].precision or UNKNOWN for i in row.layers[k]] for k in (0, candidate)]
    both = base_ms is not None and candidate_ms is not None
    delta = _delta(row, times, candidate)
    before, after = ("+".join(dict.fromkeys(map(visible_name, names))) for names in precisions)
    return AlignedRow(
        name=short_name(" + ".join(layer.name for layer in (_of(row, times, 0) or shown))),
        type=short_name(" + ".join(dict.fromkeys(layer.type for layer in (_of(row, times, 0) or shown))), 60),
        base_ms=base_ms,
        candidate_ms=candidate_ms,
        delta=f"{'+' if delta > 0 else MINUS if delta < 0 else ''}{milliseconds(abs(delta))}",
        change=change(base_ms or 0.0, candidate_ms or 0.0) if both else ("gone" if candidate_ms is None else "new"),
        precision=short_name(before if before == after else f"{before or ABSENT} → {after or ABSENT}", 60),
        method=row.methods[candidate] if both else "unmatched",
        confidence=row.confidence_between(0, candidate),
        verdict=verdict.verdict if verdict else "",
        q_value=verdict.q_value if verdict else None,
    )


def _of(row: LayerRow, times: Sequence[LayerTimes], profile: int) -> list[Layer]:
    return [times[profile].layers[place] for place in row.layers[profile]]


_Item = TypeVar("_Item")


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
    medians = [[median_ms(layer) for layer in profile.layers] for profile in profiles]
    changes = []
    for number, row in enumerate(compared.rows):
        of_base, of_candidate = row.layers[0], row.layers[candidate]
        if of_base or of_candidate:
            change = LayerChange(
                row=number,
                base=_picked(profiles[0].layers, of_base),
                candidate=_picked(profiles[candidate].layers, of_candidate),
                base_ms=math.fsum(_picked(medians[0], of_base)),
                candidate_ms=math.fsum(_picked(medians[candidate], of_candidate)),
                verdict=verdicts.get(number),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: -abs(change.delta_ms))


def median_ms(layer: Layer) -> float:
    """Return a layer's median; 0 if unknown or NaN."""
    median = layer.median_ms
    return median if math.isfinite(median) else 0.0


def _picked(items: Sequence[_Item], places: Iterable[int]) -> tuple[_Item, ...]:
    return tuple(items[place] for place in places)
