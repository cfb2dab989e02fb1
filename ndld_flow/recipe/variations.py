"""One recipe with other values in it. It is composed once; each variation sets values and is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.recipe.compose import Composed, holds_interpolation, resolve_interpolations
from ndld_flow.recipe.places import change_value, find_value
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.validate import Checker, expand_shorthands

Changes = Mapping[str, JsonValue]
"""Key from the recipe's root, such as `steps.speed.threads` -> value. A value replaces the previous one as a whole."""


@dataclass(frozen=True)
class Variations:
    """A composed recipe, its sweep left aside, that can be had with other values."""

    composed: Composed
    checker: Checker
    written: dict[str, Any]
    """Its values, interpolations as written: one that refers to a changed value follows it."""

    def written_with(self, changes: Changes) -> dict[str, Any]:
        """Return the values with changes, as written. Raises RecipeError for a change without a place."""
        values: Any = self.written
        for key, value in changes.items():
            words = key.split(".")
            try:
                values = change_value(self._unfold(values, words), words, value)
            except ValueError as error:
                raise RecipeError([Problem(self.composed.where(key), key, str(error))]) from None
        return expand_shorthands(values)

    def _unfold(self, values: Any, words: Sequence[str]) -> Any:  # noqa: ANN401 - plain data
        """Return the values with each `${...}` on the path of a key replaced by its target."""
        for count in range(1, len(words)):
            if holds_interpolation(found := find_value(values, words[:count])) and isinstance(found, str):
                values = change_value(values, words[:count], find_value(self.composed.values, words[:count]))
        return values

    def values(self, changes: Changes) -> dict[str, Any]:
        """Return the values with changes and interpolations resolved. Raises RecipeError for one without a target."""
        return resolve_interpolations(self.composed, self.written_with(changes))

    def recipe(self, changes: Changes, where: Callable[[str], str] | None = None) -> Recipe:
        """Return the checked recipe with changes. Raises RecipeError with every problem."""
        written = self.written_with(changes)
        values = resolve_interpolations(self.composed, written)
        return replace(self.checker.check(values, where or self.composed.where), written=written)


def open_variations(composed: Composed, checker: Checker) -> Variations:
    """Return the variations of a recipe, with its shorthands (`model: path`) expanded."""
    values = {key: value for key, value in composed.written.items() if key != "sweep"}
    return Variations(composed, checker, expand_shorthands(json.loads(json.dumps(values, default=str))))
