"""Order the rows of a comparison's layer table by change of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ndld_flow.records.comparison import LayerVerdict, ProfileComparison
from ndld_flow.records.profile import Layer, Profile

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
