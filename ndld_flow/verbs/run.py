"""`ndld-flow run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ndld_flow.cli.hydra_flags import HydraCommand
from ndld_flow.cli.options import (
    Loudness,
    NamedPath,
    cache_options,
    choose_url,
    device_timeout_option,
    json_option,
    loudness_options,
    outputs_option,
    recipe_options,
    sweep_options,
    target_option,
)

HELP = """Run a recipe; finished work is reused.

Overrides change settings in Hydra's grammar:

\b
  ndld-flow run pipelines/quickstart.yaml steps.speed.passes=500
  ndld-flow run pipelines/quickstart.yaml '~steps.same'
  ndld-flow run my.yaml +steps.check.step=lint
  ndld-flow run my.yaml -o faster.onnx

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


@click.command("run", cls=HydraCommand, help=HELP)
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
@device_timeout_option
@outputs_option
@loudness_options
@json_option
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    force: tuple[str, ...],
    trust: bool,
    multirun: bool,
    jobs: int | None,
    ray: str,
    apply: Path | None,
    on: str,
    cache: str | None,
    no_cache: bool,
    push: bool | None,
    output: Path | None,
    print_it: bool,
    defaults: bool,
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
) -> int:
    from ndld_flow import api
    from ndld_flow.cli.progress import choose_listener
    from ndld_flow.runner.request import Placement

    if defaults:
        for name, path in api.list_files(recipe, overrides).items():
            click.echo(f"{name:<40}  {path}")
        return 0
    if print_it:
        click.echo(api.compose(recipe, overrides, multirun=multirun), nl=False)
        return 0
    options: dict[str, Any] = {
        "outputs": outputs,
        "force": force,
        "trust": trust,
        "multirun": multirun,
        "place": Placement(jobs, ray),
        "on": on,
        "apply": apply,
        "output": output,
        "cache": choose_url(cache, no_cache),
        "push": push,
        "command": ("ndld-flow", *sys.argv[1:]),
    }
    with choose_listener(as_json=as_json, loudness=loudness) as listener:
        finished = api.run(recipe, overrides, **options, listener=listener)
    return finished.exit_code
