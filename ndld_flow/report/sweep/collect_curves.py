"""Collect curves of objectives and throughput along numeric axes, one line per combination of the other axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.base.quantities import parse_percent
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepAxis, SweepPoint, SweepRecord
from ndld_flow.report.sweep.dimensions import AxisNumbers, Dimension, axis_numbers
from ndld_flow.report.sweep.point_words import key_of, short_names, value_words

_LINES = 6
_LEAST_POINTS = 3
_GAIN, _POINTS = 0.02, 2
"""Defaults of saturation: minimum gain, and number of points."""


@dataclass(frozen=True)
class CurveLine:
    """Points that differ only on the curve's axis."""

    label: str
    """`threads 2`; empty for a single line."""
    rows: tuple[int, ...]
    """Positions of its points, in the axis' order."""
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    saturated: int | None
    """Position in the line where it saturates; None if it does not."""


@dataclass(frozen=True)
class Curve:
    """One quantity along one axis."""

    axis: str
    y: Dimension
    lines: tuple[CurveLine, ...]
    left_out: int
    """Number of lines that are not shown."""
    log: bool


@dataclass(frozen=True)
class _Saturation:
    gain: float
    points: int


def collect_curves(record: SweepRecord, dimensions: Sequence[Dimension]) -> tuple[Curve, ...]:
    """Return a curve for each numeric axis with a line of three points, and each objective and throughput."""
    objectives = [one for one in dimensions if one.kind == "objective"]
    quantities = [*objectives, *_throughput(objectives, dimensions)]
    found = []
    for axis in record.axes:
        numbers = axis_numbers(axis)
        rows = _rows_of_lines(axis, numbers, record) if numbers and len(axis.values) >= _LEAST_POINTS else []
        if numbers and rows and quantities:
            # A combination has the same colour in all curves of an axis.
            lines = _best_first(rows, quantities[0])
            found += [_curve(axis, numbers, quantity, lines, record) for quantity in quantities]
    return tuple(curve for curve in found if curve.lines)


def saturates_at(values: Sequence[float | None], direction: str, gain: float, points: int) -> int | None:
    """Return the position of the best value before `points` consecutive values that gain less than `gain` over it.

    Returns None if values gain to the end, or never gain, which is not saturation.
    """
    best: int | None = None
    poor = 0
    for position, value in enumerate(values):
        if value is None:
            continue
        if best is None or _gains(value, values[best], direction, gain):
            best, poor = position, 0
            continue
        poor += 1
        if poor == points:
            return best or None
    return None


def _gains(value: float, best: float | None, direction: str, gain: float) -> bool:
    assert best is not None
    better = best - value if direction == "minimize" else value - best
    return better > 0 and better >= gain * abs(best)


def _throughput(objectives: Sequence[Dimension], dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Return items per second of each step with it, otherwise passes per second; empty if an objective is a
    throughput."""
    metrics = [one for one in dimensions if one.kind == "metric" and one.unit == "1/s"]
    for end in ("throughput.items", "throughput.median"):
        if any(one.label.endswith(end) for one in objectives):
            return []
        if found := [one for one in metrics if one.label.endswith(end)]:
            return found[:2]
    return []


def _rows_of_lines(axis: SweepAxis, numbers: AxisNumbers, record: SweepRecord) -> list[list[int]]:
    """Return groups of rows that are equal on all other axes, ordered along this one, the longest first."""
    lines: dict[str, list[int]] = defaultdict(list)
    for row, point in enumerate(record.points):
        if key_of(point.values.get(axis.name)) in numbers.of_key:
            lines[key_of(_others(point, axis))].append(row)
    ordered = [sorted(rows, key=lambda row: _x(record.points[row], axis, numbers)) for rows in lines.values()]
    return sorted((rows for rows in ordered if len(rows) >= _LEAST_POINTS), key=lambda rows: -len(rows))


def _others(point: SweepPoint, axis: SweepAxis) -> dict[str, JsonValue]:
    return {name: value for name, value in point.values.items() if name != axis.name}


def _x(point: SweepPoint, axis: SweepAxis, numbers: AxisNumbers) -> float:
    return numbers.of_key[key_of(point.values.get(axis.name))]


def _curve(
    axis: SweepAxis, numbers: AxisNumbers, quantity: Dimension, lines: Sequence[Sequence[int]], record: SweepRecord
) -> Curve:
    """Return the curve of the lines with the best values, up to a maximum."""
    values = quantity.numbers or ()
    known = [rows for rows in lines if sum(values[row] is not None for row in rows) >= _LEAST_POINTS]
    shown = sorted(_best_first(known, quantity)[:_LINES], key=known.index)
    varying = {
        name
        for rows in shown
        for name, value in _others(record.points[rows[0]], axis).items()
        if key_of(value) != key_of(record.points[shown[0][0]].values.get(name))
    }
    x = [number for number in numbers.of_key.values() if number > 0]
    return Curve(
        axis=short_name(numbers.label, 100),
        y=quantity,
        lines=tuple(_line(rows, axis, numbers, quantity, record, varying) for rows in shown),
        left_out=len(known) - len(shown),
        log=axis.log or (len(x) == len(numbers.of_key) and max(x) / min(x) >= 8),
    )


def _best_first(lines: Sequence[Sequence[int]], quantity: Dimension) -> list[Sequence[int]]:
    sign = 1 if quantity.direction == "minimize" else -1
    values = quantity.numbers or ()
    return sorted(
        lines, key=lambda rows: min((sign * one for row in rows if (one := values[row]) is not None), default=math.inf)
    )


def _line(
    rows: Sequence[int],
    axis: SweepAxis,
    numbers: AxisNumbers,
    quantity: Dimension,
    record: SweepRecord,
    varying: set[str],
) -> CurveLine:
    points = [record.points[row] for row in rows]
    y = tuple((quantity.numbers or ())[row] for row in rows)
    rule = _saturation(record.recipe)
    others = _others(points[0], axis).items()
    names = short_names(list(points[0].values))
    return CurveLine(
        label=", ".join(f"{names[name]} {value_words(value)}" for name, value in others if name in varying),
        rows=tuple(rows),
        x=tuple(_x(point, axis, numbers) for point in points),
        y=y,
        saturated=saturates_at(y, quantity.direction, rule.gain, rule.points),
    )


def _saturation(recipe: Mapping[str, JsonValue]) -> _Saturation:
    """Return the recipe's definition of saturation."""
    sweep = recipe.get("sweep")
    said = sweep.get("saturation") if isinstance(sweep, dict) else None
    if not isinstance(said, dict):
        return _Saturation(_GAIN, _POINTS)
    gain, points = said.get("gain"), said.get("points")
    return _Saturation(_fraction(gain), points if isinstance(points, int) else _POINTS)


def _fraction(gain: JsonValue) -> float:
    """Return the fraction of 0.02 or `2 %`."""
    try:
        return parse_percent(gain) if isinstance(gain, str) else float(str(gain))
    except ValueError:
        return _GAIN
