"""`ndld-flow tag`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import outputs_option


@click.command("tag", short_help="Give a run or a sweep a lasting name.")
@click.argument("run")
@click.argument("name", required=False)
@click.option("--delete", "-d", is_flag=True, help="Forget the tag RUN; what it named stays.")
@outputs_option
def command(run: str, name: str | None, delete: bool, outputs: Path) -> None:
    """Give a run or a sweep a lasting name.

    RUN is a tag, a recipe's name (its newest run or sweep), an id or its beginning, a path, or `latest`; with `#17` or
    `#best` behind it, that point of a sweep. What is tagged is never removed by `gc`; a name that is taken moves.
    """
    if delete:
        api.untag(run, outputs=outputs)
        click.echo(f"forgot {run}")
        return
    if name is None:
        raise click.UsageError("say the NAME to give, or --delete to forget the tag RUN")
    folder = api.tag(run, name, outputs=outputs)
    from ndld_flow.runner.outputs import name_folder

    click.echo(f"{name} -> {name_folder(folder)}")
