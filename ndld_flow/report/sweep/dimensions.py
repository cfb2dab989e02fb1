"""Collect the dimensions of a sweep's points as columns: axes, objectives, metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.text import short_name, shortened
from ndld_flow.profiles.compare.measured import which_is_better
from ndld_flow.records.sweep import SweepAxis, SweepPoint, SweepRecord
from ndld_flow.report.encoding import rounded
from ndld_flow.report.sweep.point_words import key_of, value_words

_ROOM = 16
"""Maximum characters of a label on an axis of the parallel coordinates."""
_FEW = 12
"""Maximum number of values of an axis that may be geometric, such as 1, 2, 4, 8."""
_TELLING = (
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
    """None for an axis without numbers."""
    unit: str = ""
    direction: str = ""
    """`minimize` or `maximize`; empty if there is no preference."""
    log: bool = False
    texts: tuple[str, ...] = ()
    """Values of an axis as in the recipe."""
    levels: tuple[int, ...] = ()
    """Position of each point's value among them."""
    telling: bool = False
    """True if it is shown by default."""

    def at(self, row: int) -> float | None:
        """Return the number of one point; None if unknown or NaN."""
        return self.numbers[row] if self.numbers is not None else None


@dataclass(frozen=True)
class AxisNumbers:
    """The values of an axis as numbers."""

    label: str
    """The axis' name, or the varying part of a list: `inputs.x.shape[0]`."""
    of_key: dict[str, float]
    """Key of a value -> number."""


def collect_dimensions(record: SweepRecord) -> tuple[Dimension, ...]:
    """Return axes, objectives and metrics; objectives are not repeated as metrics, and constant metrics come last."""
    axes = [_axis(place, axis, record.points) for place, axis in enumerate(record.axes)]
    return (*axes, *_objectives(record), *_metrics(record))


def axis_numbers(axis: SweepAxis) -> AxisNumbers | None:
    """Return the numbers of an axis: its values, or the one number in which lists differ, such as a batch; otherwise
    None.
    """
    if axis.numeric:
        return AxisNumbers(axis.name, {key_of(value): float(str(value)) for value in axis.values})
    lists = [value for value in axis.values if isinstance(value, list)]
    if len(lists) < 2 or len(lists) < len(axis.values) or len({len(one) for one in lists}) > 1:
        return None
    differing = [place for place in range(len(lists[0])) if len({key_of(one[place]) for one in lists}) > 1]
    if len(differing) != 1 or not all(_is_number(one[differing[0]]) for one in lists):
        return None
    place = differing[0]
    return AxisNumbers(f"{axis.name}[{place}]", {key_of(one): float(str(one[place])) for one in lists})


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
    found = axis_numbers(axis)
    if found is None:
        texts = _told_apart(texts)
    numbers = tuple(found.of_key.get(key_of(point.values.get(axis.name))) for point in points) if found else None
    return Dimension(
        key=f"axis_{place}",
        label=short_name(axis.name, 100),
        kind="axis",
        numbers=numbers,
        log=axis.log or (len(texts) <= _FEW and numbers is not None and _is_wide(numbers)),
        texts=tuple(texts),
        levels=tuple(levels),
        telling=len(set(levels)) > 1,
    )


def _told_apart(texts: Sequence[str]) -> list[str]:
    """Return distinct labels: long values with equal ends are numbered."""
    if len({shortened(text, _ROOM) for text in texts}) == len(texts):
        return list(texts)
    return [f"{place}: {text}" for place, text in enumerate(texts, 1)]


def _objectives(record: SweepRecord) -> list[Dimension]:
    found = []
    for place, objective in enumerate(record.objectives):
        numbers = tuple(_finite(point.objectives[place : place + 1]) for point in record.points)
        found.append(
            Dimension(
                key=f"objective_{place}",
                label=short_name(objective.text, 100),
                kind="objective",
                numbers=numbers,
                unit=short_name(objective.unit, 20),
                direction=objective.direction,
                log=_is_wide(numbers),
                telling=True,
            )
        )
    return found


def _metrics(record: SweepRecord) -> list[Dimension]:
    taken = {objective.text for objective in record.objectives}
    names = dict.fromkeys(name for point in record.points for name in point.metrics if name not in taken)
    found = [_metric(name, record.points) for name in names]
    chosen = _telling(found, [objective.text for objective in record.objectives])
    marked = [replace(one, key=f"metric_{place}", telling=one.label in chosen) for place, one in enumerate(found)]
    return sorted(marked, key=lambda one: (not one.telling, not _varies(one)))


def _telling(metrics: Sequence[Dimension], objectives: Sequence[str]) -> list[str]:
    """Return the names of a few metrics of kinds other than the objectives."""
    kinds = [ends for ends in _TELLING if not any(text.endswith(ends) for text in objectives)]
    names = [one.label for one in metrics if _varies(one)]
    found = [next((name for end in ends for name in names if name.endswith(end)), None) for ends in kinds]
    return [name for name in found if name is not None][: 2 if objectives else 4]


def _metric(name: str, points: Sequence[SweepPoint]) -> Dimension:
    metrics = [point.metrics.get(name) for point in points]
    unit = next((metric.unit for metric in metrics if metric is not None), "")
    numbers = tuple(_finite((metric.value,)) if metric is not None else None for metric in metrics)
    better = which_is_better(name, unit)
    return Dimension(
        key="",
        label=short_name(name, 100),
        kind="metric",
        numbers=numbers,
        unit=short_name(unit, 20),
        direction={"lower": "minimize", "higher": "maximize"}.get(better, ""),
        log=_is_wide(numbers),
    )


def _varies(one: Dimension) -> bool:
    return len({number for number in one.numbers or () if number is not None}) > 1


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


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
