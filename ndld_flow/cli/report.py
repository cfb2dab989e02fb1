"""`ndld-flow report`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import outputs_option


@click.command("report", short_help="Draw a run's report again from its records.")
@click.argument("run", default="latest")
@click.option("--open", "open_it", is_flag=True, help="Open it in a browser.")
@outputs_option
def command(run: str, open_it: bool, outputs: Path) -> None:
    """Draw a run's report again from its records.

    RUN is a tag, a recipe's name (its newest run), an id or its beginning, a path, or `latest`. Needs no model, no GPU
    and none of the heavy libraries.
    """
    path = api.report(run, outputs=outputs)
    click.echo(path)
    if open_it:
        click.launch(path.as_uri())
