"""A checked sweep: its space of points, and the recipe that each point is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.recipe.gates import Expression, Gate
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.resolved import keep_interpolations, resolve_recipe
from ndld_flow.recipe.sweep_axes import SweptAxis, overlap
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.recipe.variations import Variations
from ndld_flow.sweep_search.search import Direction, SearchOptions
from ndld_flow.sweep_search.space import Assignment, Space


@dataclass(frozen=True)
class Objective:
    """The objective of a sweep."""

    text: str
    """As written in the recipe."""
    direction: Direction
    expression: Expression


@dataclass(frozen=True)
class Sweep:
    """A sweep whose every word has been checked."""

    base: Recipe
    """The recipe itself, its own values in it; `base.file.sweep` is the section, axes of the command line included."""
    section: SweepSection
    space: Space
    options: SearchOptions
    objectives: tuple[Objective, ...]
    """Those to minimize first."""
    constraints: tuple[Gate, ...]
    axes: tuple[SweptAxis, ...]
    """In the order of `space.axes`."""
    variations: Variations
    where: Callable[[str], str]
    """Dotted path -> `file:line` or `override "..."`."""

    @property
    def plain_overrides(self) -> tuple[str, ...]:
        """The overrides that do not define or control the sweep."""
        overrides = self.variations.composed.overrides
        return tuple(one for one in overrides if not re.match(r"[+~]*sweep([.=@]|$)", one))

    def changes(self, point: Assignment) -> dict[str, JsonValue]:
        """Return the settings of a point: values by key from the recipe's root, such as `steps.speed.threads`."""
        return {key: value for axis in self.axes for key, value in axis.changes(point[axis.name]).items()}

    def point(self, point: Assignment) -> Recipe:
        """Return the checked recipe of a point, without a sweep. Raises RecipeError if its values conflict."""
        return self.variations.recipe(self.changes(point), self._where)

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
