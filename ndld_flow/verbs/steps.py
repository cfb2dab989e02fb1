"""List the steps, or explain one with all its settings.

The name is that of a step, such as `convert_fp16`, or of a part of one, such as `edit.rename_nodes`; `inputs` explains
the recipe's `inputs:`, which steps share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.text import suggest
from ndld_flow.cli.options import files_option, json_option, print_json
from ndld_flow.cli.public_functions import VerbOutput, public
from ndld_flow.cli.terminal import hanging

INPUTS = "inputs"
"""The name under which the settings of a recipe's `inputs:` are explained."""

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ndld_flow.recipe.schema import DescribedPart, DescribedStep
    from ndld_flow.recipe.step_types import StepType

OUTPUT: VerbOutput[list[DescribedStep] | DescribedStep | DescribedPart] = VerbOutput(
    __name__, "All steps; with a name, that step, or that part of a step."
)


@public
def steps(files: Sequence[str | Path] = ()) -> list[StepType]:
    """Return all step types: built in, installed, and those in `files` (whose code runs)."""
    from ndld_flow.recipe.step_types import StepTypes

    return list(StepTypes(tuple(Path(file).resolve() for file in files)))


@click.command("steps", help=__doc__)
@click.argument("name", required=False)
@files_option
@json_option
def command(name: str | None, files: tuple[Path, ...], as_json: bool) -> None:
    from ndld_flow.cli.explain_step import explain_part, explain_step
    from ndld_flow.recipe.schema import DescribedPart, describe_step
    from ndld_flow.recipe.step_types import BUILT_IN

    types = steps(files)
    if name is not None:
        kind, part = _find(name, types)
        if as_json:
            described = DescribedPart(name=name, settings=part.model_json_schema()) if part else describe_step(kind)
            print_json(OUTPUT, described)
        else:
            click.echo(explain_step(kind) if part is None else explain_part(name.partition(".")[2] or name, part))
        return
    if as_json:
        print_json(OUTPUT, [describe_step(kind) for kind in types])
        return
    width = max(len(kind.name) for kind in types)
    for kind in types:
        origin = "" if kind.origin == BUILT_IN else f"  ({kind.origin})"
        click.echo(hanging(f"{kind.name:<{width}}  ", f"{kind.summary}{origin}"))
    click.echo(
        hanging(f"{'':<{width}}  ", "`ndld-flow steps inputs` explains the shapes and values of models' inputs.")
    )


def _find(name: str, types: Sequence[StepType]) -> tuple[StepType, type[BaseModel] | None]:
    """Return a step, and the part that its settings name: `edit.rename_nodes` is an operation of the step `edit`."""
    from ndld_flow.inputs import InputSpec

    word, _, part = name.partition(".")
    kind = next((kind for kind in types if kind.name == word), None)
    if kind is None and name == INPUTS:
        return types[0], InputSpec
    if kind is None:
        owners = [owner.name for owner in types if name in owner.cls.parts()]
        hint = f"did you mean {owners[0]}.{name}?" if owners else suggest(name, [kind.name for kind in types])
        raise click.UsageError(f"there is no step {name!r}; {hint}")
    parts = kind.cls.parts()
    if part and part not in parts:
        raise click.UsageError(f"{word} has no {part!r}; {suggest(part, parts) or 'it has no parts'}")
    return kind, parts[part] if part else None
