"""`ndld-flow collect`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ndld_flow.cli.completers import complete_overrides
from ndld_flow.cli.options import (
    Loudness,
    apply_option,
    cache_options,
    choose_url,
    json_option,
    loudness_options,
    outputs_option,
    queue_options,
    target_option,
)

HELP = """Join the shards of a sweep into one sweep with one report.

Give the recipe and the overrides of the shards, and their outputs folder or their cache:

\b
  ndld-flow run sweep.yaml --shard 1/2 --cache /mnt/team/cache --push
  ndld-flow run sweep.yaml --shard 2/2 --cache /mnt/team/cache --push
  ndld-flow collect sweep.yaml --cache /mnt/team/cache

Nothing is computed. Points without results are listed with the reason, and the exit code is 4: start their shards
again, which compute only what is missing, or collect the rest with --partial. --measure measures the best points
again, in turns, as a sweep in one process does at its end: on this machine, or on the target that --on names. Shards
that ran with --on are collected with the same --on.
"""


@click.command("collect", help=HELP)
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_overrides)
@click.option("--multirun", "-m", is_flag=True, help="As for the shards: overrides with several values are axes.")
@click.option("--trust", is_flag=True, help="Allow code that the recipe names.")
@click.option("--shards", type=click.IntRange(min=1), metavar="N", help="The number of shards, if several were tried.")
@click.option("--partial", is_flag=True, help="Collect what exists, although points are missing.")
@click.option("--measure", is_flag=True, help="Measure the best points again, in turns.")
@apply_option
@target_option
@cache_options
@click.option("--push/--no-push", default=None, help="Add the results of --measure to the shared cache, or not.")
@queue_options
@outputs_option
@loudness_options
@json_option
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    multirun: bool,
    trust: bool,
    shards: int | None,
    partial: bool,
    measure: bool,
    apply: Path | None,
    on: str,
    cache: str | None,
    no_cache: bool,
    push: bool | None,
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
) -> int:
    from ndld_flow import api
    from ndld_flow.cli.progress import choose_listener

    with choose_listener(as_json=as_json, loudness=loudness) as listener:
        finished = api.collect(
            recipe,
            overrides,
            shards=shards,
            partial=partial,
            measure=measure,
            outputs=outputs,
            trust=trust,
            multirun=multirun,
            apply=apply,
            on=on,
            cache=choose_url(cache, no_cache),
            push=push,
            command=("ndld-flow", *sys.argv[1:]),
            listener=listener,
        )
    return finished.exit_code
