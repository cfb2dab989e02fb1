"""In which order the steps of a recipe are done, and which of them take turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from ndld_flow.recipe.recipe import Recipe, RecipeStep

Unit = tuple[RecipeStep, ...]
"""Steps that are done together: measuring steps that take turns, or one step by itself."""


def arrange_steps(recipe: Recipe) -> list[Unit]:
    """The recipe's steps in the order in which they are done.

    That is the recipe's own order, but for measuring steps that take turns: they wait for the last of them, and what
    reads them waits too.
    """
    place = {step.name: position for position, step in enumerate(recipe.steps)}
    waiting = sorted(_units(recipe), key=lambda unit: place[unit[-1].name])
    made, ordered = set(recipe.models), []
    while waiting:
        unit = next(unit for unit in waiting if all(made.issuperset(step.reads.values()) for step in unit))
        waiting.remove(unit)
        ordered.append(unit)
        made |= {step.name for step in unit}
    return ordered


def _units(recipe: Recipe) -> list[Unit]:
    """Steps by type, device and depth: one that reads, over any way, what a measuring step made is deeper than it.

    So no two units wait for each other.
    """
    depths = dict.fromkeys(recipe.models, 0)
    units: dict[Hashable, list[RecipeStep]] = defaultdict(list)
    measures = {step.name: step.type.cls.takes_turns for step in recipe.steps}
    for step in recipe.steps:
        depths[step.name] = max(depths[name] + measures.get(name, False) for name in step.reads.values())
        key = (step.type.name, step.step.device, depths[step.name]) if measures[step.name] else step.name
        units[key].append(step)
    return [tuple(unit) for unit in units.values()]
