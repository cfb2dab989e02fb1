"""Describe points of a sweep: values, numbers, objectives."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from ndld_flow.base.quantities import quantity
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepObjective, SweepPoint
from ndld_flow.report.value_text import value_text

NONE = "\N{EN DASH}"
_OWN_FOLDER = re.compile(r"points/[\w-]+")


def values_words(point: SweepPoint, most: int = 8) -> str:
    """Return `speed.threads 2, speed.optimization all`."""
    shown = [f"{short_name(name, 60)} {value_words(value)}" for name, value in list(point.values.items())[:most]]
    left = len(point.values) - most
    return ", ".join([*shown, f"{left} more"] if left > 0 else shown)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return name -> short name without the step, `threads` for `speed.threads`, if unique."""
    tails = {name: name.partition(".")[2] or name for name in names}
    times = Counter(tails.values())
    return {name: short_name(tail if times[tail] == 1 else name, 60) for name, tail in tails.items()}


def value_words(value: JsonValue) -> str:
    """Return a value as in the recipe, on one line of limited length."""
    return short_name(value_text(value), 80)


def points_words(numbers: Sequence[int], most: int = 12) -> str:
    """Return `point 4`, `points 4 and 9` or `points 1, 2, 3 and 7 more`."""
    if len(numbers) == 1:
        return f"point {numbers[0]}"
    shown = [str(number) for number in numbers[:most]]
    left = len(numbers) - most
    last = f"{left} more" if left > 0 else shown.pop()
    return f"points {', '.join(shown)} and {last}"


def objective_words(value: float | None, objective: SweepObjective) -> str:
    """Return `3.21 ms`."""
    return NONE if value is None else quantity(value, short_name(objective.unit, 20))


def objectives_words(values: Sequence[float | None], objectives: Sequence[SweepObjective]) -> str:
    """Return `3.21 ms` for one objective; several, and those without a unit, have names: `clean.nodes 239`."""
    shown = [objective_words(value, one) for value, one in zip(values, objectives, strict=False)]
    if len(objectives) == 1 and objectives[0].unit:
        return shown[0] if shown else NONE
    return ", ".join(f"{short_name(one.text, 60)} {text}" for one, text in zip(objectives, shown, strict=False))


def goal_words(objective: SweepObjective) -> str:
    """Return `least speed.latency.min`."""
    return f"{'least' if objective.direction == 'minimize' else 'most'} {short_name(objective.text, 100)}"


def final(point: SweepPoint) -> tuple[float | None, ...]:
    """Return a point's objectives of the second measurement if there is one, otherwise of the first."""
    return point.again.objectives if point.again is not None else point.objectives


def link(point: SweepPoint) -> str:
    """Return the path of a point's report from the sweep's; empty without one. Edited records must not link
    elsewhere."""
    return f"./{point.folder}/report.html" if _OWN_FOLDER.fullmatch(point.folder) else ""


def key_of(value: JsonValue) -> str:
    """Return a key that is equal only for equal values of equal type: 1, 1.0 and true differ."""
    # Most values are short texts and numbers, for which JSON's writer takes ten times longer.
    if isinstance(value, str):
        return f"'{value}"
    return repr(value) if isinstance(value, bool | int | float) else json.dumps(value, sort_keys=True)
