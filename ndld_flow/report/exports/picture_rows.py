"""Collect the data of a comparison's picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.records.comparison import ComparedMetric, Comparison, MetricVerdict, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.exports.layer_changes import LayerChange, layer_changes

SERIES = ("#0072b2", "#d55e00", "#009e73", "#b6588f", "#c79a00", "#3a3f45", "#6cc4f0", "#a3123a", "#9a9fa6", "#6a4cf0")
"""Colours of the subjects, as in the page's light theme."""
_PROFILES, _LAYERS, _SUBJECTS = 6, 10, 10


@dataclass(frozen=True)
class Row:
    """One subject of one profile in the upper panels."""

    label: str
    colour: str
    runs: tuple[float, ...]
    value: float | None
    unit: str
    verdict: MetricVerdict | None


@dataclass(frozen=True)
class Group:
    """One profile in the upper panels, a row for each subject."""

    title: str
    rows: tuple[Row, ...]

    @property
    def base(self) -> float | None:
        """The base's value."""
        return self.rows[0].value if self.rows else None


def picture_groups(comparison: Comparison) -> list[Group]:
    """Return the first profiles, up to a readable number."""
    return [_group(comparison, compared) for compared in comparison.profiles[:_PROFILES]]


def _group(comparison: Comparison, compared: ProfileComparison) -> Group:
    metric = next((one for one in compared.metrics if one.metric == compared.decided_by), None)
    verdicts = {verdict.candidate: verdict for verdict in compared.deciding}
    rows = [
        _row(comparison, metric, compared.subjects[place], place, verdicts.get(place))
        for place in range(min(len(compared.subjects), _SUBJECTS))
    ]
    name = f"{compared.name}: {compared.decided_by}" if len(comparison.profiles) > 1 else compared.decided_by
    return Group(name, tuple(rows))


def _row(
    comparison: Comparison, metric: ComparedMetric | None, subject: int, place: int, verdict: MetricVerdict | None
) -> Row:
    runs = metric.runs[place] if metric is not None and place < len(metric.runs) else ()
    value = metric.values[place] if metric is not None else None
    return Row(
        label=comparison.subjects[subject].label,
        colour=SERIES[subject % len(SERIES)],
        runs=tuple(run for run in runs if math.isfinite(run)),
        value=value if value is not None and math.isfinite(value) else None,
        unit=metric.unit if metric is not None else "",
        verdict=verdict,
    )


def largest_changes(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> list[LayerChange]:
    """Return the largest changes of the first deciding profile, or of the first with layers, for the last candidate."""
    order = sorted(
        zip(comparison.profiles, profiles, strict=True),
        key=lambda pair: all(one.verdict != comparison.verdict for one in pair[0].deciding),
    )
    for compared, measured in order:
        found = [change for change in layer_changes(compared, measured) if change.delta_ms][:_LAYERS]
        if found:
            return found
    return []
