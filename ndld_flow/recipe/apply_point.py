"""Write a point's values into a recipe's text: a plain recipe, without its `sweep:`, that a person goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import RecipeError
from ndld_flow.recipe.compose import compose_file
from ndld_flow.recipe.edit_yaml import CannotEditError, Words, remove_key, set_value
from ndld_flow.recipe.resolved import write_yaml
from ndld_flow.recipe.validate import Checker
from ndld_flow.recipe.variations import Changes, Variations, open_variations
from ndld_flow.recipe.yaml_file import parse_yaml

REMOVED = object()


def apply_point(path: Path, changes: Changes, overrides: Sequence[str] = ()) -> str:
    """The recipe's own text with changes written where they belong, its `sweep:` taken out, all else as it is.

    `overrides`: those of the command line, written into the recipe too. Lines end as they do in the file: write the
    text without translating them. Its points were tried, so it has what trust it needs. A recipe that cannot be
    changed in these places alone is written out whole, without comments, and its heading says so. Raises RecipeError
    for a file that is no recipe and changes that find no place.
    """
    with path.open(encoding="utf-8-sig", newline="") as stream:
        raw = stream.read()
    text = raw.replace("\r\n", "\n")
    wanted = _open(path, text, overrides)
    values = wanted.values(changes)
    try:
        edited = _edit(text, _open(path, text) if overrides else wanted, wanted, changes)
        found = _open(path, edited)
        if found.composed.values.get("sweep") is not None:  # another one comes from `defaults:`
            edited = set_value(edited, ("sweep",), None)
            found = _open(path, edited)
        if not _is_same(found, wanted.written_with(changes), values):
            raise CannotEditError("its presets or aliases say otherwise")
    except (CannotEditError, RecipeError, RecursionError) as error:
        why = f"{path.name} could not be changed in these places alone ({' '.join(str(error).split())[:200]}),"
        shown = ", ".join(f"{key}: {json.dumps(value)}" for key, value in changes.items())
        edited = write_yaml(values, f"{path.name} with {shown}\n{why}\nso all of it is written out here.")
    return edited.replace("\n", "\r\n") if "\r\n" in raw else edited


def _open(path: Path, text: str, overrides: Sequence[str] = ()) -> Variations:
    return open_variations(compose_file(parse_yaml(path, text), overrides, trust=True), Checker(path))


def _edit(text: str, own: Variations, wanted: Variations, changes: Changes) -> str:
    """Return the text without its sweep, with the overrides of the recipe's own values and with the changes."""
    if "sweep" in own.composed.file.values:
        text = remove_key(text, ("sweep",))
    for words, value in _differences(own.written, wanted.written):
        text = remove_key(text, words) if value is REMOVED else set_value(text, words, value)  # type: ignore[arg-type]
    written = wanted.written
    for place, (key, value) in enumerate(changes.items(), 1):
        changed = wanted.written_with(dict(list(changes.items())[:place]))
        if json.dumps(changed) != json.dumps(written):
            text = set_value(text, key.split("."), value)
        written = changed
    return text


def _differences(
    now: Mapping[str, Any], wanted: Mapping[str, Any], above: Words = ()
) -> Iterator[tuple[Words, object]]:
    """Return the paths at which two sets of values differ, with the new value of each."""
    for key in dict.fromkeys([*now, *wanted]):
        words = (*above, key)
        if key not in wanted:
            yield words, REMOVED
        elif isinstance(now.get(key), dict) and isinstance(wanted[key], dict):
            yield from _differences(now[key], wanted[key], words)
        elif key not in now or json.dumps(now[key]) != json.dumps(wanted[key]):
            yield words, wanted[key]


def _is_same(edited: Variations, written: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a text has the expected meaning, including its `${...}` and the order of its steps."""
    both = ((edited.written, written), (edited.values({}), values))
    return edited.composed.values.get("sweep") is None and all(
        json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)
        and list(found["steps"] or ()) == list(wanted["steps"] or ())
        for found, wanted in both
    )
