"""Write the recipe lines of a point, and find the point of the recipe's own settings."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import yaml
from pydantic import JsonValue

from ndld_flow.base.quantities import parse_bytes, parse_duration_ms, parse_percent
from ndld_flow.base.text import visible_text
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.sweep.point_words import key_of


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
    return visible_text("\n".join(_lines(tree, 0)))


def find_own_point(record: SweepRecord) -> SweepPoint | None:
    """Return the point with the recipe's own values, including defaults; None if there is none."""
    return next((point for point in record.points if _is_own(point, record.recipe)), None)


def _find_place(key: str, recipe: Mapping[str, JsonValue]) -> tuple[list[str], list[str], JsonValue]:
    """Split `inputs.x.1.shape.0` into names of mappings and indices within a list, with the recipe's value there."""
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
    """Return the first name of a key; names in the recipe may contain dots."""
    known = inside if isinstance(inside, dict) else {}
    whole = [name for name in known if name and (key == name or key.startswith(f"{name}."))]
    return max(whole, key=len) if whole else key.partition(".")[0]


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


def _said(key: str, recipe: Mapping[str, JsonValue]) -> JsonValue:
    """Return the recipe's value at a key; null if there is none."""
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
    """Return whether a resolved recipe's value equals an axis' value; sizes, durations and shares are resolved to
    numbers.
    """
    if key_of(found) == key_of(value):
        return True
    if not _is_number(found):
        return False
    return found in list(_readings(value)) if isinstance(value, str) else _is_number(value) and found == value


def _readings(text: str) -> Iterator[float]:
    """Yield all possible readings of a quantity, as the record does not have the setting's unit."""
    for parse in (parse_bytes, parse_duration_ms, parse_percent):
        with contextlib.suppress(ValueError):
            yield parse(text)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Leaf:
    """A value, as opposed to a mapping on its path."""

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


# Cached: the points of a sweep share values, and YAML's writer is slow.
@lru_cache(maxsize=4096)
def _scalar(kind: str, value: str | float | None) -> str:
    """Return a scalar as YAML. `kind` distinguishes 1 and true, which are equal in Python."""
    return _flow(json.dumps(value))


def _flow(as_json: str) -> str:
    """Return a value on one line."""
    value = json.loads(as_json)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
