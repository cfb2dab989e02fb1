"""The data of the scripts of a sweep's page: points, their dimensions, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import apart
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.encoding import rounded
from ndld_flow.report.sweep.dimensions import Curve, CurveLine, Dimension
from ndld_flow.report.sweep.points import link, recipe_lines


@dataclass(frozen=True)
class PointStepRow:
    """A step of a point."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class ConstraintRow:
    """A constraint on a point."""

    gate: str
    passed: bool
    measured: str


@dataclass(frozen=True)
class AgainRow:
    """The second measurement of a point."""

    verdict: str
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PointRow:
    """One point."""

    number: int
    outcome: str
    mark: str
    """`best`, `tie` or `front`; empty for other points."""
    reason: str
    failed_step: str
    report: str
    """Address of its own report."""
    lines: str
    """Its settings as lines of a recipe."""
    rank: int | None
    wall_s: float
    steps: list[PointStepRow]
    constraints: list[ConstraintRow]
    again: AgainRow | None


@dataclass(frozen=True)
class DrawnCurve:
    """One quantity along one axis."""

    axis: str
    dimension: int
    """Position among the dimensions."""
    left_out: int
    log: bool
    lines: Sequence[CurveLine]


@dataclass(frozen=True)
class DrawnSweep:
    """All data of the page."""

    id: str
    name: str
    points: list[PointRow]
    dimensions: Sequence[Dimension]
    curves: list[DrawnCurve]


def sweep_data(record: SweepRecord, dimensions: Sequence[Dimension], curves: Sequence[Curve]) -> DrawnSweep:
    """Return all data of the page; points are in the record's order."""
    places = {id(dimension): index for index, dimension in enumerate(dimensions)}
    return DrawnSweep(
        id=record.id,
        name=short_name(record.recipe_name, 100),
        points=[_point(point, record) for point in record.points],
        dimensions=dimensions,
        curves=[DrawnCurve(each.axis, places[id(each.y)], each.left_out, each.log, each.lines) for each in curves],
    )


def _point(point: SweepPoint, record: SweepRecord) -> PointRow:
    again = point.again
    return PointRow(
        number=point.number,
        outcome=point.outcome,
        mark="best" if point.number == record.best else "tie" if point.tied else "front" if point.on_front else "",
        reason=short_name(point.reason, 600),
        failed_step=short_name(point.failed_step, 80),
        report=link(point),
        lines=recipe_lines(point, record.recipe),
        rank=point.rank,
        wall_s=rounded(point.wall_s),
        steps=[
            PointStepRow(short_name(step.name, 80), step.outcome, short_name(step.reason, 160)) for step in point.steps
        ],
        constraints=[
            ConstraintRow(
                short_name(gate.gate, 160), gate.passed, apart((gate.left, gate.right), short_name(gate.unit, 20))[0]
            )
            for gate in point.constraints
        ],
        again=AgainRow(
            again.verdict,
            *(None if end is None else rounded(end) for end in (again.ratio, again.ratio_low, again.ratio_high)),
        )
        if again
        else None,
    )
