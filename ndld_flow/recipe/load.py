"""From a recipe's file to a checked recipe or a checked sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.places import find_value
from ndld_flow.recipe.compose import Composed, compose_recipe, compose_written
from ndld_flow.recipe.config_files import choose, find_folders
from ndld_flow.recipe.overrides import AxisError, check_overrides
from ndld_flow.recipe.recipe import Recipe, RecipeFile
from ndld_flow.recipe.resolved import write_yaml
from ndld_flow.recipe.validate import name_recipe, validate_recipe
from ndld_flow.recipe.yaml_file import YamlFile, read_yaml
from ndld_flow.store.hidden_credentials import hide_in_values

if TYPE_CHECKING:
    from ndld_flow.recipe.points import Sweep
    from ndld_flow.recipe.sweep_axes import GivenAxis


def load_sweep(
    recipe: Path | YamlFile, overrides: Sequence[str] = (), *, multirun: bool = False, trust: bool = False
) -> Recipe | Sweep:
    """Compose and check a recipe that may have a `sweep:`; return a recipe if nothing varies.

    Some overrides define an axis, which replaces the recipe's axis of this name or key, or is added: with `multirun`
    (`-m`) those with several values (`steps.speed.threads=1,2`); `sweep.over.KEY=VALUES`; and those that give an axis
    of the recipe a single value. `variant=plain,fp16` chooses among variants. Raises RecipeError with every problem.
    """
    check_overrides(overrides)
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    composed, given = _compose_axes(file, overrides, multirun, lambda plain: compose_recipe(file, plain, trust=trust))
    if composed.values.get("sweep") is None and not given:
        return validate_recipe(composed, trust=trust)
    from ndld_flow.recipe.make_sweep import make_sweep

    plain = composed.overrides
    return make_sweep(composed, given, trust, lambda more: compose_recipe(file, [*plain, *more], trust=trust))


def print_recipe(recipe: Path | YamlFile, overrides: Sequence[str] = (), *, multirun: bool = False) -> str:
    """Return a composed recipe as YAML that can be run itself: with presets, overrides and axes of the command line.

    Interpolations stay as they were written, and credentials are hidden. Values are not checked. Raises RecipeError for
    a recipe that cannot be composed.
    """
    check_overrides(overrides)
    file = read_yaml(recipe) if isinstance(recipe, Path) else recipe
    composed, given = _compose_axes(file, overrides, multirun, lambda plain: compose_written(file, plain))
    if given:
        from ndld_flow.recipe.sweep_axes import add_axes

        composed, _ = add_axes(composed, given)
    values = {**composed.values, "name": name_recipe(file.path, composed.values)}
    folder = file.path.absolute().parent
    if isinstance(values.get("steps_from"), list):
        values["steps_from"] = [str((folder / str(name)).resolve()) for name in values["steps_from"]]
    known = [key for key in RecipeFile.model_fields if key in values]
    ordered = hide_in_values({key: values[key] for key in (*known, *(values.keys() - set(known)))})
    return write_yaml({key: value for key, value in ordered.items() if value is not None}, "")


def _compose_axes(
    file: YamlFile, overrides: Sequence[str], multirun: bool, compose: Callable[[Sequence[str]], Composed]
) -> tuple[Composed, list[GivenAxis]]:
    """Compose a recipe with the overrides that define no axis; return it with the axes of the others."""
    if not overrides and _OPEN not in file.text:
        return compose(()), []
    from ndld_flow.recipe.sweep_axes import first_choices, read_pin

    axes, plain = _split(overrides, multirun)
    choices: list[str] = []
    if _OPEN in file.text:  # Hydra composes nothing while a config group is open, also where an axis chooses its file
        over = find_value(file.values, ("sweep", "over"))
        forms = {**(over if isinstance(over, dict) else {}), **{axis.key: axis.form for _, axis in axes}}
        chosen = first_choices(forms, find_folders(file.path))
        choices = [choose(group, name, file.values) for group, name in chosen.items()]

    def compose_plain(plain: Sequence[str]) -> Composed:
        return replace(compose([*plain, *choices]), overrides=tuple(plain))

    composed = compose_plain([override for _, override in plain])
    pins = [(place, pin) for place, override in plain if (pin := read_pin(override, composed.values))]
    if pins:
        left = [_compose_pin(override, dict(pins).get(place), composed.values) for place, override in plain]
        composed = compose_plain([override for override in left if override])
    return composed, [axis for _, axis in sorted([*axes, *pins], key=lambda numbered: numbered[0])]


_OPEN = "???"


def _split(overrides: Sequence[str], multirun: bool) -> tuple[list[tuple[int, GivenAxis]], list[tuple[int, str]]]:
    """Return the overrides that define an axis, and all others, each with its position."""
    from ndld_flow.recipe.sweep_axes import read_axis_override

    axes: list[tuple[int, GivenAxis]] = []
    plain: list[tuple[int, str]] = []
    problems: list[Problem] = []
    for index, override in enumerate(overrides):
        try:
            axis = read_axis_override(override, multirun)
        except RecipeError as error:
            problems += error.problems
            continue
        if axis is not None:
            axes.append((index, axis))
        else:
            plain.append((index, override))
    if problems:
        raise RecipeError(problems)
    return axes, plain


def _compose_pin(override: str, pin: GivenAxis | None, values: Mapping[str, Any]) -> str:
    """Return the override to compose for a pinned axis; None if it chooses a variant, which is no setting."""
    if pin is None:
        return override
    from ndld_flow.recipe.sweep_axes import find_root_key

    try:
        return f"{find_root_key(pin.key, values)}={override.partition('=')[2]}"
    except AxisError:
        return ""
