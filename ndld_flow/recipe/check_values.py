"""Try each value of a sweep's axes in the recipe before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.recipe.places import find_value
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sweep_axes import SweptAxis, overlap
from ndld_flow.recipe.validate import Mistakes
from ndld_flow.recipe.variations import Changes, Variations
from ndld_flow.sweep_search.axis_values import values_of
from ndld_flow.sweep_search.numbered_space import NumberedSpace
from ndld_flow.sweep_search.space import Assignment, Choices, Space

MAX_TRIED = 5000
"""Values that all axes together may list."""


@dataclass(frozen=True)
class ValueCheck:
    """Tries values of axes in a recipe."""

    axes: Sequence[SweptAxis]
    space: Space
    variations: Variations
    base: Recipe | None
    """The recipe itself; None when it has mistakes of its own, and `known` has them."""
    known: frozenset[tuple[str, str]]

    def check(self, mistakes: Mistakes) -> Assignment | None:
        """Report the problems of values, each once; return the recipe's own value on each axis.

        A value is wrong when the recipe will have it neither with its own other values nor in the first point that has
        it. What is wrong only in company is left to the run. None when the recipe itself is no point.
        """
        if sum(len(axis.axis.values) for axis in self.axes if isinstance(axis.axis, Choices)) > MAX_TRIED:
            mistakes.add("sweep.over", f"all axes together may list {MAX_TRIED:,} values", "give ranges: `from`, `to`")
            return None
        start = {axis.name: self._check_axis(axis, mistakes) for axis in self.axes}
        known = {name: value[0] for name, value in start.items() if value}
        return known if len(known) == len(start) else None

    def _check_axis(self, axis: SweptAxis, mistakes: Mistakes) -> list[JsonValue]:
        """Check the values of an axis; return the recipe's own value on it, if it is one of them."""
        found: dict[Problem, list[str]] = {}
        own = []
        samples = list(axis.samples())
        for place, value in samples:
            recipe, problems = self._try(axis.changes(value))
            if problems and self._try_first(axis, value):
                for problem in (_of_value(each, axis, value) for each in problems):
                    found.setdefault(replace(problem, path=""), []).append(f"{place}{problem.path}")
            elif recipe is not None and self.base is not None and _does_the_same(recipe, self.base):
                own.append(value)
        for problem, places in found.items():
            everywhere = len(places) == len(samples) > 1
            mistakes.add(axis.place if everywhere else places[0], problem.what, problem.hint)
        return own[:1] or self._own_number(axis)

    def _try(self, changes: Changes) -> tuple[Recipe | None, list[Problem]]:
        """Return the recipe with changes, or the problems that the changes cause."""
        try:
            return self.variations.recipe(changes), []
        except RecipeError as error:
            return None, [problem for problem in error.problems if (problem.path, problem.what) not in self.known]

    def _try_first(self, axis: SweptAxis, value: JsonValue) -> list[Problem]:
        """Return the problems of the first point that has a value; none if no point has it."""
        narrowed = tuple(Choices(each.name, (value if each is axis else _first(each),)) for each in self.axes)
        points = NumberedSpace(replace(self.space, axes=narrowed))
        if not points.count:
            return []
        point = points.point(points.place(0))
        return self._try({key: each for other in self.axes for key, each in other.changes(point[other.name]).items()})[
            1
        ]

    def _own_number(self, axis: SweptAxis) -> list[JsonValue]:
        """Return the recipe's number on an axis of numbers, if the axis contains it."""
        if isinstance(axis.axis, Choices) or self.base is None:
            return []
        value = _own_value(self.base, axis.keys[0])
        position = values_of(axis.axis).position(value)
        return [] if position is None else [values_of(axis.axis).value(position)]


def _first(axis: SweptAxis) -> JsonValue:
    return next(value for _, value in axis.samples())


def _of_value(problem: Problem, axis: SweptAxis, value: JsonValue) -> Problem:
    """Return a problem that a value causes as the value's own; its path is relative to the value's place."""
    for key in axis.keys:
        if overlap(problem.path, key):  # of a variant, the key that is wrong
            return replace(problem, where="", path=f".{key.removeprefix('steps.')}" if axis.variants else "")
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return replace(problem, where="", path="", what=f"with {shown}, {problem.path}: {problem.what}")


def _does_the_same(recipe: Recipe, base: Recipe) -> bool:
    """Return whether two recipes describe the same work."""
    gates = [gate.text for gate in recipe.gates] == [gate.text for gate in base.gates]
    return gates and (recipe.steps, recipe.models, recipe.file.inputs) == (base.steps, base.models, base.file.inputs)


def _own_value(base: Recipe, key: str) -> JsonValue:
    """Return the recipe's value at a key, including the defaults of steps."""
    words = key.split(".")
    for step in base.steps if words[0] == "steps" else ():
        if step.name == words[1]:
            value: JsonValue = find_value(step.settings, words[2:])
            return value
    return find_value(base.file.model_dump(mode="json"), words)  # type: ignore[no-any-return]
