"""Recipes of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ndld_flow.recipe.load import compose_recipe
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.validate import validate_recipe


def load_recipe(path: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> Recipe:
    """Compose and check a recipe; check only the form of its `sweep:`.

    Raises RecipeError with every problem.
    """
    return validate_recipe(compose_recipe(path, overrides, trust=trust), trust=trust)


LITTLE_WORTH: Mapping[str, Sequence[str]] = {"check_accuracy": ("power=off", "made=off")}
"""Settings of checks without what a check is worth, and without samples that it makes: these take most of its time."""


def cheaper(recipe: Path, settings: Mapping[str, Sequence[str]] = LITTLE_WORTH) -> list[str]:
    """Return overrides that set the settings of each type of step in a recipe."""
    steps = yaml.safe_load(recipe.read_text())["steps"]
    return [
        f"++steps.{name}.{setting}"
        for name, step in steps.items()
        for setting in settings.get((step or {}).get("step", name), ())
    ]
