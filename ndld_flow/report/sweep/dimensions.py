"""Dimensions of a sweep's points as columns (axes, objectives, metrics), and curves along numeric axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.declared_metrics import which_is_better
from ndld_flow.base.quantities import parse_percent
from ndld_flow.base.text import short_name, shortened
from ndld_flow.records.measurement import Metric
from ndld_flow.records.sweep import SweepAxis, SweepPoint, SweepRecord
from ndld_flow.report.encoding import rounded
from ndld_flow.report.sweep.outcome import is_number, key_of, short_names, value_words

_ROOM = 16
"""Maximum characters of a label on an axis of the parallel coordinates."""
_FEW = 12
"""Maximum number of values of an axis that may be geometric, such as 1, 2, 4, 8."""
_TRADED_OFF = (
    ("cosine", "top1", "accuracy", "snr_db"),
    ("engine_bytes",),
    ("build_s",),
    ("memory.peak_bytes",),
    ("throughput.items", "throughput.median"),
    ("latency.min", "latency.median"),
)
"""Suffixes of metrics that are commonly traded off; of each kind, the first that varies is used."""


@dataclass(frozen=True)
class Dimension:
    """One column: a number per point, or the position of its text."""

    key: str
    label: str
    kind: Literal["axis", "objective", "metric"]
    numbers: tuple[float | None, ...] | None
    """The first measurements; None for an axis without numbers."""
    again: tuple[float | None, ...] = ()
    """The second ones, None for points that were not measured again; empty for an axis."""
    unit: str = ""
    direction: str = ""
    """`minimize` or `maximize`; empty if there is no preference."""
    log: bool = False
    texts: tuple[str, ...] = ()
    """Values of an axis as in the recipe."""
    levels: tuple[int, ...] = ()
    """Position of each point's value among them."""
    is_default: bool = False
    """True if it is shown by default."""

    @property
    def finals(self) -> tuple[float | None, ...]:
        """The measurements that rank the points: the second ones where there are any."""
        pairs = zip(self.numbers or (), self.again or self.numbers or (), strict=True)
        return tuple(first if again is None else again for first, again in pairs)


@dataclass(frozen=True)
class AxisNumbers:
    """The values of an axis as numbers."""

    label: str
    """The axis' name, or the varying part of a list: `inputs.x.shape[0]`."""
    of_key: dict[str, float]
    """Key of a value -> number."""


def collect_dimensions(record: SweepRecord) -> tuple[Dimension, ...]:
    """Return axes, objectives and metrics; objectives are not repeated as metrics, and constant metrics come last."""
    axes = [_axis(index, axis, record.points) for index, axis in enumerate(record.axes)]
    return (*axes, *_objectives(record), *_metrics(record))


def axis_numbers(axis: SweepAxis) -> AxisNumbers | None:
    """Return the numbers of an axis: its values, or the one number in which lists differ, such as a batch; otherwise
    None.
    """
    if axis.numeric:
        return AxisNumbers(axis.name, {key_of(value): float(str(value)) for value in axis.values})
    lists = [value for value in axis.values if isinstance(value, list)]
    if len(lists) < 2 or len(lists) < len(axis.values) or len({len(items) for items in lists}) > 1:
        return None
    differing = [index for index in range(len(lists[0])) if len({key_of(items[index]) for items in lists}) > 1]
    if len(differing) != 1 or not all(is_number(items[differing[0]]) for items in lists):
        return None
    place = differing[0]
    return AxisNumbers(f"{axis.name}[{place}]", {key_of(items): float(str(items[place])) for items in lists})


def _axis(place: int, axis: SweepAxis, points: Sequence[SweepPoint]) -> Dimension:
    keys = {key_of(value): position for position, value in enumerate(axis.values)}
    texts = [value_words(value) for value in axis.values]
    levels = []
    for point in points:
        value = point.values.get(axis.name)
        key = key_of(value)
        if key not in keys:
            keys[key] = len(texts)
            texts.append(value_words(value))
        levels.append(keys[key])
    as_numbers = axis_numbers(axis)
    if as_numbers is None and len({shortened(text, _ROOM) for text in texts}) < len(texts):
        texts = [f"{number}: {text}" for number, text in enumerate(texts, 1)]  # long values with equal ends
    numbers = (
        tuple(as_numbers.of_key.get(key_of(point.values.get(axis.name))) for point in points) if as_numbers else None
    )
    return Dimension(
        key=f"axis_{place}",
        label=short_name(axis.name, 100),
        kind="axis",
        numbers=numbers,
        log=axis.log or (len(texts) <= _FEW and numbers is not None and _is_wide(numbers)),
        texts=tuple(texts),
        levels=tuple(levels),
        is_default=len(set(levels)) > 1,
    )


def _objectives(record: SweepRecord) -> list[Dimension]:
    objectives_found = []
    for index, objective in enumerate(record.objectives):
        numbers = tuple(_finite(point.objectives[index : index + 1]) for point in record.points)
        objectives_found.append(
            Dimension(
                key=f"objective_{index}",
                label=short_name(objective.text, 100),
                kind="objective",
                numbers=numbers,
                again=tuple(
                    _finite(point.again.objectives[index : index + 1]) if point.again else None
                    for point in record.points
                ),
                unit=short_name(objective.unit, 20),
                direction=objective.direction,
                log=_is_wide(numbers),
                is_default=True,
            )
        )
    return objectives_found


def _metrics(record: SweepRecord) -> list[Dimension]:
    taken = {objective.text for objective in record.objectives}
    names = dict.fromkeys(name for point in record.points for name in point.metrics if name not in taken)
    metrics = [_metric_dimension(name, record.points) for name in names]
    objectives = [objective.text for objective in record.objectives]
    # A few metrics of kinds other than the objectives.
    kinds = [ends for ends in _TRADED_OFF if not any(text.endswith(ends) for text in objectives)]
    labels = [metric.label for metric in metrics if _varies(metric)]
    names_by_kind = [next((name for end in ends for name in labels if name.endswith(end)), None) for ends in kinds]
    chosen = [name for name in names_by_kind if name is not None][: 2 if objectives else 4]
    marked = [
        replace(metric, key=f"metric_{index}", is_default=metric.label in chosen)
        for index, metric in enumerate(metrics)
    ]
    return sorted(marked, key=lambda metric: (not metric.is_default, not _varies(metric)))


def _metric_dimension(name: str, points: Sequence[SweepPoint]) -> Dimension:
    metrics = [point.metrics.get(name) for point in points]
    unit = next((metric.unit for metric in metrics if metric is not None), "")
    numbers = tuple(map(_value, metrics))
    better = which_is_better(name, unit)
    return Dimension(
        key="",
        label=short_name(name, 100),
        kind="metric",
        numbers=numbers,
        again=tuple(_value(point.again.metrics.get(name)) if point.again else None for point in points),
        unit=short_name(unit, 20),
        direction={"lower": "minimize", "higher": "maximize"}.get(better, ""),
        log=_is_wide(numbers),
    )


def _varies(dimension: Dimension) -> bool:
    return len({number for number in dimension.numbers or () if number is not None}) > 1


def _value(metric: Metric | None) -> float | None:
    return _finite((metric.value,)) if metric is not None else None


def _finite(values: Sequence[float | None]) -> float | None:
    (value,) = values or (None,)
    if value is None or not math.isfinite(value):
        return None
    # For a cosine, the distance from 1 is relevant.
    return round(1 - rounded(1 - value), 12) if 0.99 < value < 1 else rounded(value)


def _is_wide(numbers: Sequence[float | None]) -> bool:
    """Return whether a linear scale would compress most of the values."""
    known = [number for number in numbers if number is not None]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= 8


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
    objectives = [dimension for dimension in dimensions if dimension.kind == "objective"]
    quantities = [*objectives, *_throughput(objectives, dimensions)]
    curves = []
    for axis in record.axes:
        numbers = axis_numbers(axis)
        rows = _rows_of_lines(axis, numbers, record) if numbers and len(axis.values) >= _LEAST_POINTS else []
        if numbers and rows and quantities:
            # A combination has the same colour in all curves of an axis.
            lines = _best_first(rows, quantities[0])
            curves += [_curve(axis, numbers, quantity, lines, record) for quantity in quantities]
    return tuple(curve for curve in curves if curve.lines)


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
    metrics = [dimension for dimension in dimensions if dimension.kind == "metric" and dimension.unit == "1/s"]
    for end in ("throughput.items", "throughput.median"):
        if any(objective.label.endswith(end) for objective in objectives):
            return []
        if with_end := [metric for metric in metrics if metric.label.endswith(end)]:
            return with_end[:2]
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
    rule = _saturation(record.recipe)
    drawn = []
    for rows in shown:
        points = [record.points[row] for row in rows]
        y = tuple(values[row] for row in rows)
        others = _others(points[0], axis).items()
        names = short_names(list(points[0].values))
        drawn.append(
            CurveLine(
                label=", ".join(f"{names[name]} {value_words(value)}" for name, value in others if name in varying),
                rows=tuple(rows),
                x=tuple(_x(point, axis, numbers) for point in points),
                y=y,
                saturated=saturates_at(y, quantity.direction, rule.gain, rule.points),
            )
        )
    x = [number for number in numbers.of_key.values() if number > 0]
    return Curve(
        axis=short_name(numbers.label, 100),
        y=quantity,
        lines=tuple(drawn),
        left_out=len(known) - len(shown),
        log=axis.log or (len(x) == len(numbers.of_key) and max(x) / min(x) >= 8),
    )


def _best_first(lines: Sequence[Sequence[int]], quantity: Dimension) -> list[Sequence[int]]:
    sign = 1 if quantity.direction == "minimize" else -1
    values = quantity.numbers or ()
    return sorted(
        lines,
        key=lambda rows: min((sign * value for row in rows if (value := values[row]) is not None), default=math.inf),
    )


def _saturation(recipe: Mapping[str, JsonValue]) -> _Saturation:
    """Return the recipe's definition of saturation."""
    sweep = recipe.get("sweep")
    settings = sweep.get("saturation") if isinstance(sweep, dict) else None
    if not isinstance(settings, dict):
        return _Saturation(_GAIN, _POINTS)
    gain, points = settings.get("gain"), settings.get("points")
    try:
        fraction = parse_percent(gain) if isinstance(gain, str) else float(str(gain))
    except ValueError:
        fraction = _GAIN
    return _Saturation(fraction, points if isinstance(points, int) else _POINTS)
