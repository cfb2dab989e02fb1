"""Write the points of a sweep for spreadsheets."""

from __future__ import annotations

from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.exports.csv_tables import Cell, csv_text
from ndld_flow.report.settings_text import value_text


def points_csv(record: SweepRecord) -> str:
    """Return one line per point, in the order of trials: settings, first and second measurement, all metrics."""
    units = {name: metric.unit for point in record.points for name, metric in point.metrics.items()}
    goals = [_headed(one.text, one.unit) for one in record.objectives]
    head = [
        "point",
        "outcome",
        "rank",
        "tied",
        "on_front",
        *(axis.name for axis in record.axes),
        *goals,
        *(f"{goal} again" for goal in goals),
        "standing",
        "ratio",
        "ratio_low",
        "ratio_high",
        "failed_step",
        "reason",
        "own_s",
        "folder",
        *(_headed(name, unit) for name, unit in units.items()),
    ]
    return csv_text([head, *(_row(point, record, list(units)) for point in record.points)])


def _row(point: SweepPoint, record: SweepRecord, metrics: list[str]) -> list[Cell]:
    goals = len(record.objectives)
    again = point.again
    values = [point.values.get(axis.name) for axis in record.axes]
    return [
        point.number,
        point.outcome,
        point.rank,
        int(point.tied),
        int(point.on_front),
        *(one if isinstance(one, int | float) and not isinstance(one, bool) else value_text(one) for one in values),
        *_filled(point.objectives, goals),
        *_filled(again.objectives if again else (), goals),
        again.standing if again else None,
        *((again.ratio, again.ratio_low, again.ratio_high) if again else (None, None, None)),
        point.failed_step,
        point.reason,
        point.wall_s,
        point.folder,
        *(point.metrics[name].value if name in point.metrics else None for name in metrics),
    ]


def _filled(values: tuple[float | None, ...], count: int) -> list[float | None]:
    return [*values, *[None] * count][:count]


def _headed(name: str, unit: str) -> str:
    return f"{name} {unit}" if unit else name
