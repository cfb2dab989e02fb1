"""Completions for a shell: step types, keys of a recipe, runs and tags. Nothing here may fail or take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path

import click

_MOST_RUNS = 200

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _quietly(words: Callable[[click.Context], Iterator[str]]) -> Completer:
    """Return a completer that yields no words where a file is broken or missing: a shell shows no errors."""

    @wraps(words)
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return sorted({word for word in words(ctx) if word.startswith(incomplete)})
        except Exception:
            return []

    return complete


@_quietly
def complete_steps(ctx: click.Context) -> Iterator[str]:
    """Yield the names of step types."""
    from ndld_flow.recipe.step_types import StepTypes

    yield from (*StepTypes().names(), "inputs")


@_quietly
def complete_targets(ctx: click.Context) -> Iterator[str]:
    """Yield the names of the targets of `optimize`."""
    from ndld_flow.recipe.optimize.presets import preset_files

    yield from preset_files()


@_quietly
def complete_verbs_with_json(ctx: click.Context) -> Iterator[str]:
    """Yield the verbs that have `--json`."""
    from ndld_flow.runner.verb_output import OUTPUTS

    yield from OUTPUTS


@_quietly
def complete_overrides(ctx: click.Context) -> Iterator[str]:
    """Yield the keys of the recipe on the command line: `steps.speed.passes=`, `inputs.x.shape=`, `~steps.lint`."""
    from ndld_flow.base.settings import fields_of
    from ndld_flow.recipe.step_types import StepTypes
    from ndld_flow.recipe.yaml_file import read_yaml

    values = read_yaml(Path(ctx.params["recipe"])).values
    yield "model="
    for name in values.get("inputs") or {}:
        yield from (f"inputs.{name}.{key}=" for key in ("shape", "data"))
    for name, settings in (values.get("steps") or {}).items():
        yield f"~steps.{name}"
        step = StepTypes().find((settings or {}).get("step", name))
        for field in fields_of(step.cls) if step is not None else ():
            yield f"steps.{name}.{field}="


@_quietly
def complete_runs(ctx: click.Context) -> Iterator[str]:
    """Yield names of recipes that were run, their newest ids, and tags."""
    outputs = Path(ctx.params.get("outputs") or "outputs")
    yield "latest"
    for folder in (outputs / "runs", outputs / "sweeps"):
        for recipe in folder.iterdir() if folder.is_dir() else ():
            yield recipe.name
            yield from sorted((run.name for run in recipe.iterdir() if run.name[:1].isdigit()), reverse=True)[
                :_MOST_RUNS
            ]
    if (outputs / "tags").is_dir():
        yield from (tag.name for tag in (outputs / "tags").iterdir())
