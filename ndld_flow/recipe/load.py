"""From a recipe's file to a checked recipe, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.artifacts.store import Store
from ndld_flow.recipe.compose import compose_recipe
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.validate import validate_recipe


def load_recipe(
    path: Path, overrides: Sequence[str] = (), *, trust: bool = False, store: Store | None = None
) -> Recipe:
    """Compose and check a recipe. Raises RecipeError with every problem found."""
    memory = store.root / "recipes" if store is not None else None
    return validate_recipe(compose_recipe(path, overrides, memory), trust=trust)
