"""Run a recipe; finished work is reused.

Overrides change settings in Hydra's grammar:

\b
  ndld-flow run pipelines/quickstart.yaml steps.speed.passes=500
  ndld-flow run pipelines/quickstart.yaml '~steps.same'
  ndld-flow run my.yaml +steps.check.step=lint
  ndld-flow run my.yaml -o result.onnx

A recipe with `sweep:` runs at many points, and so does any recipe with -m. Steps that points share run once, and an
interrupted sweep continues where it stopped:

\b
  ndld-flow run pipelines/sweep_cpu.yaml --best best.yaml
  ndld-flow run my.yaml -m steps.speed.threads=1,2,4 sweep.minimize=speed.latency.min
  ndld-flow run my.yaml -m variant=plain,fp16 '~sweep.over.speed.threads'
  ndld-flow run my.yaml '~sweep'

The run's folder (report.html, run.json, each step's files) is written under outputs/runs/, a sweep's under
outputs/sweeps/, and `latest` points to the newest. Exit code 1 means that the run finished and a check, gate or step
failed; for a sweep, that no point passed. Exit code 4 means that nothing failed, but a comparison was still undecided
at the limit of its measurements; for a sweep, that no point passed and at least one was undecided.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import (
    Given,
    Loudness,
    NamedPath,
    cache_options,
    choose_url,
    json_option,
    loudness_options,
    outputs_option,
    recipe_options,
    sweep_options,
    target_option,
)
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.execution.events import Event, RunFinished, SweepFinished
    from ndld_flow.execution.request import AnyRecipe, Placement

OUTPUT: VerbOutput[Event] = VerbOutput(
    __name__, "The events of the run, each when it happens; the last one has the result.", is_lines=True
)


@public
def run(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    multirun: bool = False,
    place: Placement | None = None,
    apply: str | Path | None = None,
    output: str | Path | None = None,
    on: str = "",
    cache: str | None = None,
    push: bool | None = None,
    command: Sequence[str] = (),
    listener: Listener | None = None,
) -> RunFinished | SweepFinished:
    """Run a recipe and write its run folder and report; finished work is reused.

    A recipe with `sweep:` runs at many points, and so does any recipe with `multirun` and overrides with several
    values, such as `steps.speed.threads=1,2,4`: then the result is a `SweepFinished`, whose metrics and artifacts are
    those of the best point. `overrides` are in Hydra's grammar; `force` names steps to run even if nothing changed;
    `trust` allows code that the recipe names; `listener` is called with every event of `ndld_flow.execution.events`.
    ``place=Placement(jobs=4)`` runs the steps of a sweep that do not measure in worker processes,
    ``Placement(ray="auto")`` runs all steps, of a sweep or not, on a cluster; `apply` is the file to write a sweep's
    best point to, as a recipe of its own. `output` is the file or folder to write the result to when the run passes:
    the last model, the last engine. `on` is the target on which the steps that need a device run: a name of the user's
    settings or of the recipe, or `ssh://HOST`. `cache` is the URL of a shared cache whose results are used, empty for
    none, and `push` whether results are added to it; by default as the environment and the settings files say.
    `command` is recorded in the run's folder instead of an equivalent one.
    """
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.runs.cache_settings import CacheChoice
    from ndld_flow.sweep.run_request import run_request

    request = request_recipe(
        recipe,
        overrides,
        outputs=outputs,
        force=force,
        trust=trust,
        multirun=multirun,
        place=place,
        apply=apply,
        output=output,
        on=on,
        cache=CacheChoice(cache, push),
        command=command,
    )
    return run_request(request, listener or ignore)


@public
def sweep(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    place: Placement | None = None,
    listener: Listener | None = None,
) -> SweepFinished:
    """Run a recipe at many points, as `run` does with `multirun`. Raises RequestError for a recipe without a sweep."""
    from ndld_flow.execution.events import RunFinished

    finished = run(recipe, overrides, outputs=outputs, trust=trust, multirun=True, place=place, listener=listener)
    assert not isinstance(finished, RunFinished)  # with `multirun`, a recipe without a sweep is refused
    return finished


@public
def compose(recipe: AnyRecipe, overrides: Sequence[str] = (), *, multirun: bool = False) -> str:
    """Return a recipe with its presets and overrides applied, as YAML that `run` accepts; nothing runs.

    Interpolations such as `${oc.env:TOKEN}` stay as they were written. The values are not checked: `plan` does that.
    """
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.recipe.load import print_recipe

    return print_recipe(request_recipe(recipe).source, tuple(overrides), multirun=multirun)


@public
def list_files(recipe: AnyRecipe, overrides: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files that make up a recipe, in the order of its `defaults:`: entry -> path; `_self_` is its own."""
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.recipe.load import list_parts

    return {part.name: part.file.path for part in list_parts(request_recipe(recipe).source, tuple(overrides))}


@click.command("run", help=__doc__)
@recipe_options
@sweep_options
@target_option
@cache_options
@click.option("--push/--no-push", default=None, help="Add the results to the shared cache, or not.")
@click.option(
    "--output",
    "-o",
    type=NamedPath(path_type=Path),
    metavar="RESULT",
    help="When the run passes, write the last model to this .onnx file, the last engine to this .engine or .plan file, "
    "or both to this folder, with a record next to each.",
)
@click.option("--print", "print_it", is_flag=True, help="Print the recipe with its overrides applied; run nothing.")
@click.option("--defaults", is_flag=True, help="Print the files that make up the recipe, in their order; run nothing.")
@outputs_option
@loudness_options
@json_option
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    multirun: bool,
    jobs: int | None,
    ray: str,
    cache: str | None,
    no_cache: bool,
    print_it: bool,
    defaults: bool,
    loudness: Loudness | None,
    as_json: bool,
    **options: Given,
) -> int:
    from ndld_flow.cli.progress import choose_listener
    from ndld_flow.execution.request import Placement

    if defaults:
        for name, path in list_files(recipe, overrides).items():
            click.echo(f"{name:<40}  {path}")
        return 0
    if print_it:
        click.echo(compose(recipe, overrides, multirun=multirun), nl=False)
        return 0
    options |= {"cache": choose_url(cache, no_cache), "place": Placement(jobs, ray)}
    options["command"] = ("ndld-flow", *sys.argv[1:])
    with choose_listener(as_json=as_json, loudness=loudness) as listener:
        finished = run(recipe, overrides, multirun=multirun, **options, listener=listener)
    return finished.exit_code
