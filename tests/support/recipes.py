"""Recipes of tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.recipe.compose import compose_recipe
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.validate import validate_recipe


def load_recipe(path: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> Recipe:
    """Compose and check a recipe; check only the form of its `sweep:`.

    Raises RecipeError with every problem.
    """
    return validate_recipe(compose_recipe(path, overrides, trust=trust), trust=trust)
