"""`ndld-flow tag`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import outputs_option


@click.command("tag")
@click.argument("run")
@click.argument("name", required=False)
@click.option("--delete", "-d", is_flag=True, help="Remove the tag RUN; its run stays.")
@outputs_option
def command(run: str, name: str | None, delete: bool, outputs: Path) -> None:
    """Give a run or a sweep a permanent name.

    RUN is a tag, a recipe's name (its newest run or sweep), an id or its first characters, a path, or `latest`; the
    suffix `#17` or `#best` names a point of a sweep. `gc` never removes a tagged run. A tag that exists moves to the
    new run.
    """
    if delete:
        api.untag(run, outputs=outputs)
        click.echo(f"removed the tag {run}")
        return
    if name is None:
        raise click.UsageError("give a NAME, or --delete to remove the tag RUN")
    folder = api.tag(run, name, outputs=outputs)
    from ndld_flow.runner.outputs import name_folder

    click.echo(f"{name} -> {name_folder(folder)}")
