"""`ndld-flow steps`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import files_option, json_option, print_json
from ndld_flow.nearest import say_nearest


@click.command("steps", short_help="List the steps, or explain one with all its settings.")
@click.argument("name", required=False)
@files_option
@json_option
def command(name: str | None, files: tuple[Path, ...], as_json: bool) -> None:
    """List the steps, or explain one with all its settings."""
    from ndld_flow.cli.explain_step import describe_step, explain_step

    types = api.steps(files)
    if name is not None:
        chosen = [found for found in types if found.name == name]
        if not chosen:
            hint = say_nearest(name, [found.name for found in types])
            raise click.UsageError(f"there is no step {name!r}; {hint}")
        click.echo(explain_step(chosen[0])) if not as_json else print_json(describe_step(chosen[0]))
        return
    if as_json:
        print_json([describe_step(found) for found in types])
        return
    width = max(len(found.name) for found in types)
    for found in types:
        origin = "" if found.origin == "built in" else f"  ({found.origin})"
        click.echo(f"{found.name:<{width}}  {found.summary}{origin}")
