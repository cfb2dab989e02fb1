"""A checked sweep: its space of points, and the recipe of each point."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import change_value, find_value
from ndld_flow.recipe.composed import Composed, holds_interpolation, resolve_interpolations
from ndld_flow.recipe.config_files import choose
from ndld_flow.recipe.gates import Expression, Gate
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.resolved import keep_interpolations, resolve_recipe
from ndld_flow.recipe.sweep_axes import SweptAxis, overlap
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.recipe.validate import Checker, expand_shorthands
from ndld_flow.sweep_search.search import Direction, SearchOptions
from ndld_flow.sweep_search.space import Assignment, Space

Changes = Mapping[str, JsonValue]
"""Key from the recipe's root, such as `steps.speed.threads` -> value. A value replaces the previous one as a whole."""


@dataclass(frozen=True)
class Variations:
    """A composed recipe without its sweep, whose values can be changed."""

    composed: Composed
    checker: Checker
    written: dict[str, Any]
    """Its values with interpolations as written, so that a reference to a changed value follows it."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Config group that varies -> the file with which it is composed."""
    compose: Callable[[Mapping[str, str]], Composed] | None = None
    """Composes the recipe with other files of the groups."""
    others: dict[tuple[str, ...], Variations] = field(default_factory=dict)
    """The recipe with other files of the groups, as far as it was composed."""

    def _choose(self, changes: Changes) -> tuple[Variations, Changes]:
        """Return the recipe with the files that changes choose, and the changes of its values."""
        chosen = {name: str(changes.get(name, choice)) for name, choice in self.choices.items()}
        _, left = self.split_choices(changes)
        if chosen == self.choices or self.compose is None:
            return replace(self, choices={}), left
        key = tuple(chosen.values())
        if key not in self.others:
            self.others[key] = open_variations(self.compose(chosen), self.checker)
        return self.others[key], left

    def split_choices(self, changes: Changes) -> tuple[tuple[str, ...], Changes]:
        """Return the overrides that choose files of config groups, and the other changes."""
        values = self.composed.file.values
        chosen = (choose(key, str(value), values) for key, value in changes.items() if key in self.choices)
        return tuple(chosen), {key: value for key, value in changes.items() if key not in self.choices}

    def written_with(self, changes: Changes) -> dict[str, Any]:
        """Return the values with changes, as written. Raises RecipeError for a change at a place that does not
        exist."""
        if self.choices:
            chosen, changes = self._choose(changes)
            return chosen.written_with(changes)
        values: Any = self.written
        for key, value in changes.items():
            words = key.split(".")
            try:
                for count in range(1, len(words)):  # each `${...}` on the path of a key is replaced by its target
                    held = find_value(values, words[:count])
                    if isinstance(held, str) and holds_interpolation(held):
                        values = change_value(values, words[:count], find_value(self.composed.values, words[:count]))
                values = change_value(values, words, value)
            except ValueError as error:
                raise RecipeError([Problem(self.composed.where(key), key, str(error))]) from None
        return expand_shorthands(values)

    def values(self, changes: Changes) -> dict[str, Any]:
        """Return the values with changes and interpolations resolved. Raises RecipeError for one without a target."""
        if self.choices:
            chosen, changes = self._choose(changes)
            return chosen.values(changes)
        return resolve_interpolations(self.composed, self.written_with(changes))

    def recipe(self, changes: Changes, where: Callable[[str], str] | None = None) -> Recipe:
        """Return the checked recipe with changes. Raises RecipeError with every problem."""
        if self.choices:
            chosen, changes = self._choose(changes)
            return chosen.recipe(changes, where)
        written = self.written_with(changes)
        values = resolve_interpolations(self.composed, written)
        return replace(self.checker.check(values, where or self.composed.where), written=written)


def open_variations(composed: Composed, checker: Checker) -> Variations:
    """Return the variations of a recipe, with its shorthands (`model: path`) expanded."""
    values = {key: value for key, value in composed.written.items() if key != "sweep"}
    return Variations(composed, checker, expand_shorthands(json.loads(json.dumps(values, default=str))))


@dataclass(frozen=True)
class Objective:
    """The objective of a sweep."""

    text: str
    """As written in the recipe."""
    direction: Direction
    expression: Expression


@dataclass(frozen=True)
class Sweep:
    """A checked sweep."""

    base: Recipe
    """The recipe with its own values; `base.file.sweep` is the section, axes of the command line included."""
    section: SweepSection
    space: Space
    options: SearchOptions
    objectives: tuple[Objective, ...]
    """Those to minimize first."""
    constraints: tuple[Gate, ...]
    axes: tuple[SweptAxis, ...]
    """In the order of `space.axes`."""
    short: Changes
    """The settings of the first measurements, by key from the recipe's root."""
    variations: Variations
    where: Callable[[str], str]
    """Dotted path -> `file:line` or `override "..."`."""

    @property
    def plain_overrides(self) -> tuple[str, ...]:
        """Return the overrides that do not define or control the sweep, and choose no file of a group that varies."""
        overrides = self.variations.composed.overrides
        return tuple(
            override
            for override in overrides
            if not re.match(r"[+~]*sweep([.=@]|$)", override)
            and override.lstrip("+").partition("=")[0] not in self.variations.choices
        )

    def changes(self, point: Assignment) -> dict[str, JsonValue]:
        """Return the settings of a point: values by key from the recipe's root, such as `steps.speed.threads`."""
        return {key: value for axis in self.axes for key, value in axis.changes(point[axis.name]).items()}

    def point(self, point: Assignment) -> Recipe:
        """Return the checked recipe of a point, without a sweep. Raises RecipeError if its values conflict."""
        return self.variations.recipe(self.changes(point), self._where)

    def first_point(self, point: Assignment) -> Recipe:
        """Return the recipe of a point's first measurement, which may be shorter. Raises RecipeError as `point`."""
        return self.variations.recipe({**self.changes(point), **self.short}, self._where)

    def resolve(self, digests: Mapping[str, str]) -> dict[str, JsonValue]:
        """Return the recipe with its sweep as plain data that gives the same points from any folder.

        `digests` as in `resolve_recipe`.
        """
        resolved: dict[str, JsonValue] = keep_interpolations(
            resolve_recipe(self.base, digests), self.variations.written
        )
        return resolved

    def _where(self, dotted: str) -> str:
        """Return the origin of a point's value at a dotted path: its axis, if one sets it."""
        setting = [axis for axis in self.axes if any(overlap(dotted, key) for key in axis.keys)]
        return self.where(setting[0].place if setting else dotted)
