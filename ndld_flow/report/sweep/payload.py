"""Encode the data of a sweep's page as columns over all points with a shared table of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ndld_flow.base.quantities import apart
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.encoding import Texts, rounded
from ndld_flow.report.page_data import AgainPayload, CurvePayload, DimensionPayload, SweepPayload
from ndld_flow.report.sweep.dimensions import Curve, Dimension
from ndld_flow.report.sweep.points import link, recipe_lines


def sweep_payload(record: SweepRecord, dimensions: Sequence[Dimension], curves: Sequence[Curve]) -> SweepPayload:
    """Return all data of the page, compressed. Rows are points, in the record's order."""
    texts = Texts()
    points = record.points
    data: SweepPayload = {
        "id": record.id,
        "name": short_name(record.recipe_name, 100),
        "objectives": len(record.objectives),
        "number": [point.number for point in points],
        "outcome": texts.places(point.outcome for point in points),
        "mark": texts.places(_mark(point, record.best) for point in points),
        "reason": texts.places(short_name(point.reason, 600) for point in points),
        "failed_step": texts.places(short_name(point.failed_step, 80) for point in points),
        "report": texts.places(link(point) for point in points),
        "lines": texts.places(recipe_lines(point, record.recipe) for point in points),
        "rank": [point.rank for point in points],
        "sitting": [point.sitting for point in points],
        "wall_s": [rounded(point.wall_s) for point in points],
        "steps": [
            texts.places(
                text
                for step in point.steps
                for text in (short_name(step.name, 80), step.outcome, short_name(step.reason, 160))
            )
            for point in points
        ],
        "constraints": [_constraints(point, texts) for point in points],
        "again": [_again(point) for point in points],
        "dimensions": [_dimension(dimension, texts) for dimension in dimensions],
        "curves": [_curve(curve, dimensions) for curve in curves],
        "texts": texts.as_list(),
    }
    return data


def _mark(point: SweepPoint, best: int | None) -> str:
    if best is not None and point.number == best:
        return "best"
    return "tie" if point.tied else "front" if point.on_front else ""


def _constraints(point: SweepPoint, texts: Texts) -> list[tuple[int, int, int]]:
    """Return gate, whether it passed, and the measured value as text."""
    constraints: list[tuple[int, int, int]] = []
    for constraint in point.constraints:
        measured, _ = apart((constraint.left, constraint.right), short_name(constraint.unit, 20))
        gate, value = texts.places([short_name(constraint.gate, 160), measured])
        constraints.append((gate, int(constraint.passed), value))
    return constraints


def _again(point: SweepPoint) -> AgainPayload | None:
    """Return verdict, ratio and interval; null if not measured again."""
    if point.again is None:
        return None
    again = point.again
    return {
        "standing": again.standing,
        "ratio": _numbers((again.ratio, again.ratio_low, again.ratio_high)),
    }


def _dimension(dimension: Dimension, texts: Texts) -> DimensionPayload:
    shown: DimensionPayload = {
        "key": dimension.key,
        "label": dimension.label,
        "kind": dimension.kind,
        "unit": dimension.unit,
        "direction": dimension.direction,
        "log": dimension.log,
        "is_default": dimension.is_default,
        "numbers": list(dimension.numbers) if dimension.numbers is not None else None,
        "again": list(dimension.again) if any(value is not None for value in dimension.again) else None,
    }
    if dimension.kind == "axis":
        shown["texts"] = texts.places(dimension.texts)
        shown["levels"] = list(dimension.levels)
    return shown


def _curve(curve: Curve, dimensions: Sequence[Dimension]) -> CurvePayload:
    return {
        "axis": curve.axis,
        "dimension": list(dimensions).index(curve.y),
        "left_out": curve.left_out,
        "log": curve.log,
        "lines": [
            {"label": line.label, "rows": list(line.rows), "x": list(line.x), "saturated": line.saturated}
            for line in curve.lines
        ],
    }


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [rounded(value) if value is not None else None for value in values]
