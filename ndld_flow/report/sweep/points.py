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

from ndld_flow.base.quantities import parse_bytes, parse_duration_ms, parse_percent, quantity
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.sweep import SweepObjective, SweepPoint, SweepRecord
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
    shown = [objective_words(value, objective) for value, objective in zip(values, objectives, strict=False)]
    if len(objectives) == 1 and objectives[0].unit:
        return shown[0] if shown else NONE
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
        (*parents, last), items, held = _find_place(key, recipe)
        place = tree
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        written = place.get(last)
        place[last] = _Leaf(_changed(written.value if isinstance(written, _Leaf) else held, items, value))
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
        if changes and all(_is_same(_value_at(key, record.recipe), value) for key, value in changes):
            return point
    return None


def _find_place(key: str, recipe: Mapping[str, JsonValue]) -> tuple[list[str], list[str], JsonValue]:
    """Split `inputs.x.1.shape.0` into names of mappings and indices within a list, with the recipe's value there."""
    names: list[str] = []
    inside: JsonValue = dict(recipe)
    rest = key
    while rest and not isinstance(inside, list):
        known = inside if isinstance(inside, dict) else {}
        # Names in the recipe may contain dots.
        whole = [name for name in known if name and (rest == name or rest.startswith(f"{name}."))]
        name = max(whole, key=len) if whole else rest.partition(".")[0]
        names.append(name)
        inside = inside.get(name) if isinstance(inside, dict) else None
        rest = rest[len(name) + 1 :]
    return names or [key], rest.split(".") if rest else [], inside


def _changed(held: JsonValue, items: Sequence[str], value: JsonValue) -> JsonValue:
    """Return a list with the value of one item changed; a value without a matching item replaces the whole list."""
    if not items:
        return value
    first, *rest = items
    if isinstance(held, list) and _is_item(first, held):
        place = int(first)
        return [*held[:place], _changed(held[place], rest, value), *held[place + 1 :]]
    return {**held, first: _changed(held.get(first), rest, value)} if isinstance(held, dict) else value


def _is_item(word: str, held: Sequence[JsonValue]) -> bool:
    return word.isascii() and word.isdigit() and int(word[:9]) < len(held)


def _value_at(key: str, recipe: Mapping[str, JsonValue]) -> JsonValue:
    """Return the recipe's value at a key; null if there is none."""
    _, items, value = _find_place(key, recipe)
    for item in items:
        if isinstance(value, list):
            value = value[int(item)] if _is_item(item, value) else None
        else:
            value = value.get(item) if isinstance(value, dict) else None
    return value


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
