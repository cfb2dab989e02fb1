"""The lines of a recipe that make a point, and the point that the recipe itself is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import yaml
from pydantic import JsonValue

from ndld_flow.plain_text import visible_text
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.sweep.point_words import key_of


def recipe_lines(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> str:
    """What to write into the recipe to have this point, as YAML: mappings in blocks, values on one line."""
    tree: dict[str, object] = {}
    for key, value in point.changes.items():
        *parents, last = split_key(key, recipe)
        place = tree
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        place[last] = _Leaf(value)
    return visible_text("\n".join(_lines(tree, 0)))


def split_key(key: str, recipe: Mapping[str, JsonValue]) -> list[str]:
    """`inputs.x.1.shape` in its parts: names that the recipe has are taken whole, also where they hold dots."""
    parts: list[str] = []
    inside: JsonValue = dict(recipe)
    rest = key
    while rest:
        known = inside if isinstance(inside, dict) else {}
        whole = [name for name in known if name and (rest == name or rest.startswith(f"{name}."))]
        name = max(whole, key=len) if whole else rest.partition(".")[0]
        parts.append(name)
        inside = known.get(name)
        rest = rest[len(name) + 1 :]
    return parts or [key]


def find_own_point(record: SweepRecord) -> SweepPoint | None:
    """The point whose values the recipe has already; None where it has none of the points, or does not say."""
    return next((point for point in record.points if _is_own(point, record.recipe)), None)


def _is_own(point: SweepPoint, recipe: Mapping[str, JsonValue]) -> bool:
    return bool(point.changes) and all(_is_said(key, value, recipe) for key, value in point.changes.items())


def _is_said(key: str, value: JsonValue, recipe: Mapping[str, JsonValue]) -> bool:
    found: JsonValue = dict(recipe)
    for part in split_key(key, recipe):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return key_of(found) == key_of(value)


class _Leaf:
    """A value, told apart from the mappings on the way to it."""

    def __init__(self, value: JsonValue) -> None:
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
    """A value on one line."""
    value = json.loads(as_json)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
