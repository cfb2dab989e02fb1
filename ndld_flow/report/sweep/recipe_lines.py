"""The lines of a recipe that make a point, and the point that the recipe itself is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import yaml
from pydantic import JsonValue

from ndld_flow.base.text import visible_text
from ndld_flow.base.units import parse_bytes, parse_duration_ms, parse_percent
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.sweep.point_words import key_of


def recipe_lines(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> str:
    """What to write into the recipe to have this point, as YAML: mappings in blocks, values on one line.

    Of a list of which one item is changed, all of it: YAML has no other way to say so.
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
    return visible_text("\n".join(_lines(tree, 0)))


def find_own_point(record: SweepRecord) -> SweepPoint | None:
    """Return the point whose values the recipe has already, its defaults included; None where it has none of the
    points.
    """
    return next((point for point in record.points if _is_own(point, record.recipe)), None)


def _find_place(key: str, recipe: Mapping[str, JsonValue]) -> tuple[list[str], list[str], JsonValue]:
    """`inputs.x.1.shape.0` as the names of mappings, what leads on inside a list, and what the recipe has there."""
    names: list[str] = []
    inside: JsonValue = dict(recipe)
    rest = key
    while rest and not isinstance(inside, list):
        name = _first_name(rest, inside)
        names.append(name)
        inside = inside.get(name) if isinstance(inside, dict) else None
        rest = rest[len(name) + 1 :]
    return names or [key], rest.split(".") if rest else [], inside


def _first_name(key: str, inside: JsonValue) -> str:
    """Return names that the recipe has are taken whole, also where they hold dots."""
    known = inside if isinstance(inside, dict) else {}
    whole = [name for name in known if name and (key == name or key.startswith(f"{name}."))]
    return max(whole, key=len) if whole else key.partition(".")[0]


def _changed(held: JsonValue, items: Sequence[str], value: JsonValue) -> JsonValue:
    """Return a list with the value of one of its items changed; what finds no place there replaces all of it."""
    if not items:
        return value
    first, *rest = items
    if isinstance(held, list) and _is_item(first, held):
        place = int(first)
        return [*held[:place], _changed(held[place], rest, value), *held[place + 1 :]]
    return {**held, first: _changed(held.get(first), rest, value)} if isinstance(held, dict) else value


def _is_item(word: str, held: Sequence[JsonValue]) -> bool:
    return word.isascii() and word.isdigit() and int(word[:9]) < len(held)


def _said(key: str, recipe: Mapping[str, JsonValue]) -> JsonValue:
    """What the recipe has at a key; null where it has nothing."""
    _, items, found = _find_place(key, recipe)
    for item in items:
        if isinstance(found, list):
            found = found[int(item)] if _is_item(item, found) else None
        else:
            found = found.get(item) if isinstance(found, dict) else None
    return found


def _is_own(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> bool:
    return bool(point.changes) and all(_is_same(_said(key, recipe), value) for key, value in point.changes.items())


def _is_same(found: JsonValue, value: JsonValue) -> bool:
    """Return whether a resolved recipe's value is what an axis says: sizes, durations and shares are plain numbers
    there.
    """
    if key_of(found) == key_of(value):
        return True
    if not _is_number(found):
        return False
    return found in list(_readings(value)) if isinstance(value, str) else _is_number(value) and found == value


def _readings(text: str) -> Iterator[float]:
    """Yield all that a quantity may mean: which setting it is of, a record does not say."""
    for parse in (parse_bytes, parse_duration_ms, parse_percent):
        with contextlib.suppress(ValueError):
            yield parse(text)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Leaf:
    """A value, told apart from the mappings on the way to it."""

    def __init__(self, value: JsonValue) -> None:
        self.value = value
        self.text = _flow(json.dumps(value)) if isinstance(value, dict | list) else _scalar(type(value).__name__, value)


def _lines(tree: Mapping[str, object], depth: int) -> list[str]:
    found = []
    for name, inner in tree.items():
        head = f"{'  ' * depth}{_scalar('str', name)}:"
        if isinstance(inner, _Leaf):
            found.append(f"{head} {inner.text}")
        elif isinstance(inner, dict):
            found += [head, *_lines(inner, depth + 1)]
    return found


# Remembered: the points of a sweep share their values, and YAML's writer is slow.
@lru_cache(maxsize=4096)
def _scalar(kind: str, value: str | float | None) -> str:
    """Of a kind, as 1 and true are equal to Python."""
    return _flow(json.dumps(value))


def _flow(as_json: str) -> str:
    """Return a value on one line."""
    value = json.loads(as_json)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
