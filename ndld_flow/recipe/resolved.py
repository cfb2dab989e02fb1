"""A recipe in full: every default included, nothing interpolated, the model pinned by digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue

from ndld_flow.base.places import put_value
from ndld_flow.inputs import Data, InputSpec, patterns_of
from ndld_flow.recipe.composed import DEPENDS_ON_SURROUNDINGS
from ndld_flow.recipe.recipe import SOURCE, ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.targets import ON
from ndld_flow.step import DataFile, Reads, SampleData
from ndld_flow.store.found_files import absolute_pattern
from ndld_flow.store.hidden_credentials import find_redacted, hide_all_credentials, hide_credentials


def resolve_recipe(recipe: Recipe, digests: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return the recipe as plain data that gives the same run from any folder.

    `digests` maps names of models to the blake3 of the model with its external data. The result has no credentials: a
    model that was fetched with credentials is found in the store without them, and a setting that contained one is
    rejected until it is restored.
    """
    file: dict[str, Any] = recipe.file.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    file.pop("custom_operators", None)  # each step has those that it uses, by absolute paths
    file.pop("environments", None)
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
    return {key: without_credentials(value, recipe.written.get(key)) for key, value in resolved.items()}


def without_credentials(resolved: Any, written: Any) -> JsonValue:  # noqa: ANN401 - plain data
    """Return values without credentials; those of interpolations stay as written, `${oc.env:NAME}`.

    So a run whose password came from a variable can be repeated from its folder if the variable is set.
    """
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {hide_credentials(key): without_credentials(value, written.get(key)) for key, value in resolved.items()}
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [without_credentials(*both) for both in zip(resolved, written, strict=True)]
    shown = hide_all_credentials(resolved)
    is_hidden = shown != resolved or next(find_redacted(shown), None) is not None
    return hide_credentials(written) if is_hidden and isinstance(written, str) and "${" in written else shown


def keep_interpolations(resolved: Any, written: Any) -> Any:  # noqa: ANN401 - plain data
    """Return resolved values with their `${...}`, except those that read the environment.

    A sweep's recipe needs them: an interpolation of a swept value resolves at each point. If a whole mapping refers to
    another one, its values stay.
    """
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {key: keep_interpolations(value, written.get(key)) for key, value in resolved.items()}
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [keep_interpolations(*both) for both in zip(resolved, written, strict=True)]
    refers = isinstance(written, str) and "${" in written and not DEPENDS_ON_SURROUNDINGS.search(written)
    return hide_credentials(written) if refers and not isinstance(resolved, dict) else resolved


def _resolve_model(model: ModelSource, digest: str) -> dict[str, JsonValue]:
    source = str(Path(model.source).expanduser().absolute()) if model.is_local else model.source
    return {**model.model_dump(mode="json", exclude_defaults=True), "source": source, "blake3": digest}


def _resolve_step(step: RecipeStep) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {"step": step.type.name, **step.own_reads, **step.settings}
    for name in step.inherited:  # a sweep over the recipe's `runtime:` changes them
        values.pop(name, None)
    if step.on:
        values[ON] = step.on
    if step.inputs is not None:
        values["inputs"] = {name: _resolve_input(spec) for name, spec in step.inputs.items()}
    for read in step.step.held(Reads):
        values.pop(read.dotted, None)
        put_value(values, read.place, read.value)
    for file in step.step.held(DataFile):
        put_value(values, file.place, _absolute(file.value))
    for samples in step.step.held(SampleData):
        put_value(values, samples.place, {name: _absolute_data(data) for name, data in samples.value.items()})
    return {**values, **{name: shown for name, shown in step.hidden.items() if name not in step.inherited}}


def _absolute(held: object) -> JsonValue:
    return [_absolute(path) for path in held] if isinstance(held, tuple) else str(Path(str(held)).absolute())


def _absolute_data(data: Data) -> JsonValue:
    """Return data patterns with absolute paths. Patterns are not expanded, so that files added later match."""
    if isinstance(data, tuple):
        return [absolute_pattern(pattern) for pattern in data]
    return absolute_pattern(data) if isinstance(data, str) and patterns_of(data) else data


def _resolve_input(spec: InputSpec) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = spec.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    if spec.tokenizer is not None:
        values["tokenizer"] = str(Path(spec.tokenizer).absolute())
    return {**values, "data": _absolute_data(spec.data)} if spec.data_patterns else values


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A dumper that writes multi-line text in literal style, after a `|`."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def write_yaml(values: dict[str, JsonValue], heading: str) -> str:
    """Return YAML text in the given order, with a heading as a comment."""
    body = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body
