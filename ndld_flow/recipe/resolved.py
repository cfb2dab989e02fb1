"""A recipe written out in full: every default told, nothing interpolated, the model pinned by digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import SOURCE, ModelSource, Recipe, RecipeStep


def resolve_recipe(recipe: Recipe, digests: Mapping[str, str]) -> dict[str, JsonValue]:
    """The recipe as plain data that gives the same run from any folder.

    `digests`: name of a model -> blake3 of the model with its external data.
    """
    file: dict[str, Any] = recipe.file.model_dump(mode="json", exclude_defaults=True)
    models = {name: _resolve_model(model, digests[name]) for name, model in recipe.models.items()}
    folder = recipe.path.absolute().parent
    resolved: dict[str, Any] = {
        **file,
        "name": recipe.name,
        "model": models.pop(SOURCE),
        **({"models": models} if models else {}),
        "steps": {step.name: _resolve_step(step) for step in recipe.steps},
    }
    if recipe.file.inputs:
        resolved["inputs"] = {name: _resolve_input(spec) for name, spec in recipe.file.inputs.items()}
    if recipe.file.steps_from:
        resolved["steps_from"] = [str((folder / name).resolve()) for name in recipe.file.steps_from]
    return resolved


def _resolve_model(model: ModelSource, digest: str) -> dict[str, JsonValue]:
    local = not model.is_fetched and not model.source.startswith("package:")
    source = str(Path(model.source).expanduser().absolute()) if local else model.source
    return {**model.model_dump(mode="json", exclude_defaults=True), "source": source, "blake3": digest}


def _resolve_step(step: RecipeStep) -> dict[str, JsonValue]:
    reads: dict[str, JsonValue] = dict(step.reads)
    files = {name: str(Path(value).absolute()) for name, value in step.data_files.items()}
    return {"step": step.type.name, **reads, **step.settings, **files}


def _resolve_input(spec: InputSpec) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = spec.model_dump(mode="json", exclude_defaults=True)
    return values if spec.data_file is None else {**values, "data": str(Path(spec.data_file).absolute())}


def write_yaml(values: dict[str, JsonValue], heading: str) -> str:
    """YAML text in the order given, with a heading as its comment."""
    body = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body
