"""From a recipe's file to a checked recipe, or to a checked sweep, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.recipe.compose import compose_recipe
from ndld_flow.recipe.make_sweep import make_sweep
from ndld_flow.recipe.overrides import AxisError, check_overrides
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sweep_axes import GivenAxis, find_root_key, read_axis_override, read_pin
from ndld_flow.recipe.validate import validate_recipe
from ndld_flow.recipe.yaml_file import YamlFile
from ndld_flow.store.store import Store


def load_recipe(
    path: Path, overrides: Sequence[str] = (), *, trust: bool = False, store: Store | None = None
) -> Recipe:
    """Compose and check a recipe; check only the form of its `sweep:`.

    Raises RecipeError with every problem.
    """
    return validate_recipe(compose_recipe(path, overrides, _memory(store), trust=trust), trust=trust)


def load_sweep(
    recipe: Path | YamlFile,
    overrides: Sequence[str] = (),
    *,
    multirun: bool = False,
    trust: bool = False,
    store: Store | None = None,
) -> Recipe | Sweep:
    """Compose and check a recipe that may have a `sweep:`; return a recipe if nothing varies.

    Some overrides define an axis, which replaces the recipe's axis of this name or key, or is added: with `multirun`
    (`-m`) those with several values (`steps.speed.threads=1,2`); `sweep.over.KEY=VALUES`; and those that give an axis
    of the recipe a single value. `variant=plain,fp16` chooses among variants. Raises RecipeError with every problem.
    """
    check_overrides(overrides)
    axes, plain = _split(overrides, multirun)
    composed = compose_recipe(recipe, [override for _, override in plain], _memory(store), trust=trust)
    pins = [(place, pin) for place, override in plain if (pin := read_pin(override, composed.values))]
    if pins:
        left = [_compose_pin(override, dict(pins).get(place), composed.values) for place, override in plain]
        composed = compose_recipe(recipe, [override for override in left if override], _memory(store), trust=trust)
    given = [axis for _, axis in sorted([*axes, *pins], key=lambda numbered: numbered[0])]
    if composed.values.get("sweep") is None and not given:
        return validate_recipe(composed, trust=trust)
    return make_sweep(composed, given, trust)


def _memory(store: Store | None) -> Path | None:
    return store.root / "recipes" if store is not None else None


def _split(overrides: Sequence[str], multirun: bool) -> tuple[list[tuple[int, GivenAxis]], list[tuple[int, str]]]:
    """Return the overrides that define an axis, and all others, each with its position."""
    axes: list[tuple[int, GivenAxis]] = []
    plain: list[tuple[int, str]] = []
    problems: list[Problem] = []
    for place, override in enumerate(overrides):
        try:
            axis = read_axis_override(override, multirun)
        except RecipeError as error:
            problems += error.problems
            continue
        if axis is not None:
            axes.append((place, axis))
        else:
            plain.append((place, override))
    if problems:
        raise RecipeError(problems)
    return axes, plain


def _compose_pin(override: str, pin: GivenAxis | None, values: Mapping[str, Any]) -> str:
    """Return the override to compose for a pinned axis; None if it chooses a variant, which is no setting."""
    if pin is None:
        return override
    try:
        return f"{find_root_key(pin.key, values)}={override.partition('=')[2]}"
    except AxisError:
        return ""
