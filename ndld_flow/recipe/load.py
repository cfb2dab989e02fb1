"""From a recipe's file to a checked recipe, or to a checked sweep, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.artifacts.store import Store
from ndld_flow.errors import Problem, RecipeError
from ndld_flow.recipe.compose import compose_recipe
from ndld_flow.recipe.make_sweep import GivenAxis, make_sweep
from ndld_flow.recipe.override_grammar import AxisError, find_axis
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.validate import validate_recipe


def load_recipe(
    path: Path, overrides: Sequence[str] = (), *, trust: bool = False, store: Store | None = None
) -> Recipe:
    """Compose and check a recipe; its `sweep:`, if it has one, only as far as its form goes.

    Raises RecipeError with every problem found.
    """
    return validate_recipe(compose_recipe(path, overrides, _memory(store)), trust=trust)


def load_sweep(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    multirun: Sequence[str] = (),
    trust: bool = False,
    store: Store | None = None,
) -> Recipe | Sweep:
    """Compose and check a recipe that may have a `sweep:`; a recipe where nothing varies.

    `multirun`: overrides after `-m`. One that names several values (`steps.speed.threads=1,2`) is an axis: it takes the
    place of the recipe's axis of this key, or is one more. Any other is an override as without `-m`.
    Raises RecipeError with every problem found.
    """
    axes, plain = _split(multirun)
    composed = compose_recipe(path, [*overrides, *plain], _memory(store))
    if composed.values.get("sweep") is None and not axes:
        return validate_recipe(composed, trust=trust)
    return make_sweep(composed, axes, trust)


def _memory(store: Store | None) -> Path | None:
    return store.root / "recipes" if store is not None else None


def _split(multirun: Sequence[str]) -> tuple[list[GivenAxis], list[str]]:
    """Overrides that name several values, and all others."""
    axes, plain, problems = [], [], []
    for override in multirun:
        try:
            found = find_axis(override)
        except AxisError as error:
            problems.append(Problem(f'override "{override}"', "", error.what, error.hint))
            continue
        if found is None:
            plain.append(override)
        elif found[0].partition(".")[0] == "sweep":
            hint = "quote text that holds commas, and write several as [a,b]"
            problems.append(Problem(f'override "{override}"', found[0], "this says how to sweep and cannot vary", hint))
        else:
            axes.append(GivenAxis(*found, override))
    if problems:
        raise RecipeError(problems)
    return axes, plain
