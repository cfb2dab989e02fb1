"""Check the inputs of a sweep's points against their models before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError, Problem, RecipeError
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.runner.check_inputs import Inputs, find_wrong_inputs
from ndld_flow.runner.run_state import RunOpener
from ndld_flow.runner.sweep.plan_sweep import MOST_POINTS
from ndld_flow.runner.sweep.try_points import ask_batches, depends_on_results
from ndld_flow.store.digest import digest_json
from ndld_flow.sweep_search.make_search import make_search

_NAMING = ("inputs", "model", "models")
"""Words in the key of an axis that changes the names of inputs, or those of the model."""


def refuse_wrong_inputs_of_points(sweep: Sweep, opener: RunOpener) -> None:
    """Raise RecipeError with all inputs of all points known in advance that their models do not have or accept.

    Points beyond `MOST_POINTS`, and those that depend on results, are checked when they run.
    """
    known: dict[Path, Inputs | None] = {}
    problems: dict[Problem, None] = {}
    for recipe in _differing_recipes(sweep):
        try:
            models = opener.find_models(recipe)
        except NdldFlowError:
            continue  # the point that names a missing model fails alone
        paths = {name: model.artifact.path for name, model in models.items()}
        problems |= dict.fromkeys(find_wrong_inputs(recipe, paths, known))
    if problems:
        raise RecipeError(list(problems))


def _differing_recipes(sweep: Sweep) -> Iterator[Recipe]:
    """Yield the recipes of points that may differ in the names of inputs; the base recipe if none do."""
    naming = [axis.name for axis in sweep.axes if any(set(key.split(".")) & set(_NAMING) for key in axis.keys)]
    if not naming:
        yield sweep.base
        return
    seen = set()
    batches = ask_batches(sweep, make_search(sweep.space, sweep.options))
    known = islice(batches, 1) if depends_on_results(sweep) else batches
    for _, point in islice(chain.from_iterable(known), MOST_POINTS):
        values = digest_json([point[name] for name in naming])
        if values in seen:
            continue
        seen.add(values)
        try:
            yield sweep.point(point)
        except NdldFlowError:
            continue  # its settings contradict each other: it fails alone
