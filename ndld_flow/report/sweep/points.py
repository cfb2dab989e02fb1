"""Points of a sweep: their values, objectives and recipe lines as text."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml
from pydantic import JsonValue

from ndld_flow.base.places import change_value, find_value, split_key
from ndld_flow.base.quantities import parse_bytes, parse_duration_ms, parse_percent, quantity
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.sweep import SweepObjective, SweepPoint, SweepRecord
from ndld_flow.report.tables import ABSENT
from ndld_flow.report.value_text import value_text

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
    return ABSENT if value is None else quantity(value, short_name(objective.unit, 20))


def objectives_words(values: Sequence[float | None], objectives: Sequence[SweepObjective]) -> str:
    """Return `3.21 ms` for one objective; several, and those without a unit, have names: `clean.nodes 239`."""
    shown = [objective_words(value, objective) for value, objective in zip(values, objectives, strict=False)]
    if len(objectives) == 1 and objectives[0].unit:
        return shown[0] if shown else ABSENT
    return ", ".join(
        f"{short_name(objective.text, 60)} {text}" for objective, text in zip(objectives, shown, strict=False)
    )


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


def is_number(value: JsonValue) -> bool:
    """Return whether a value of a recipe is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def recipe_lines(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> str:
    """Return the recipe lines of a point as YAML: mappings in blocks, values on one line.

    A list with one changed item is written in full, because YAML cannot express a partial change.
    """
    tree: dict[str, object] = {}
    for key, value in point.changes.items():
        (*parents, last), items, held = _split_at_list(key, recipe)
        place = tree
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        written = place.get(last)
        inside = written.value if isinstance(written, _Leaf) else held
        try:
            place[last] = _Leaf(change_value(inside, items, value))
        except ValueError:  # there is no such item: the value replaces the list
            place[last] = _Leaf(value)
    if not tree:
        return ""
    text: str = yaml.dump(
        tree, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False, width=10**9
    )
    return visible_text(text).rstrip("\n")


def find_own_point(record: SweepRecord) -> SweepPoint | None:
    """Return the point with the recipe's own values, including defaults; None if there is none."""
    for point in record.points:
        changes = point.changes.items()
        if changes and all(_is_same(find_value(record.recipe, key.split(".")), value) for key, value in changes):
            return point
    return None


def _split_at_list(key: str, recipe: Mapping[str, JsonValue]) -> tuple[list[str], Sequence[str], JsonValue]:
    """Split `inputs.x.1.shape.0` into names of mappings and a path within a list, with the recipe's value there."""
    names: list[str] = []
    inside: JsonValue = dict(recipe)
    rest: Sequence[str] = key.split(".")
    while rest and not isinstance(inside, list):
        known = inside if isinstance(inside, dict) else {}
        name, rest = split_key(known, rest)
        names.append(name)
        inside = known.get(name)
    return names, rest, inside


def _is_same(own: JsonValue, value: JsonValue) -> bool:
    """Return whether a resolved recipe's value equals an axis' value; sizes, durations and shares are resolved to
    numbers.
    """
    if key_of(own) == key_of(value):
        return True
    if not is_number(own):
        return False
    return own in list(_readings(value)) if isinstance(value, str) else is_number(value) and own == value


def _readings(text: str) -> Iterator[float]:
    """Yield all possible readings of a quantity, as the record does not have the setting's unit."""
    for parse in (parse_bytes, parse_duration_ms, parse_percent):
        with contextlib.suppress(ValueError):
            yield parse(text)


@dataclass(frozen=True)
class _Leaf:
    """A value, which is written on one line, as opposed to a mapping on its path."""

    value: JsonValue


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML's writer with leaves."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_leaf(self, leaf: _Leaf) -> yaml.Node:
        node: yaml.Node = self.represent_data(leaf.value)
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = True
        return node


_Dumper.add_representer(_Leaf, _Dumper.represent_leaf)
