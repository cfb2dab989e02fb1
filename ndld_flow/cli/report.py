"""`ndld-flow report`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import outputs_option


@click.command("report", short_help="Draw a run's or a sweep's report again from its records.")
@click.argument("run", default="latest")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write the page of a profile or an engine.",
)
@click.option("--open", "open_it", is_flag=True, help="Open it in a browser.")
@outputs_option
def command(run: str, to: Path | None, open_it: bool, outputs: Path) -> None:
    """Draw a run's or a sweep's report again from its records.

    RUN is a tag, a recipe's name (its newest run or sweep), an id or its beginning, a path, or `latest`; with `#17` or
    `#best` behind it, that point of a sweep. Or a profile that belongs to no run: exports of trtexec, a TREx folder,
    ONNX Runtime's profile, a profile.json; or an engine: what TensorRT's engine inspector wrote (.trt.json), a
    build.json. Its page is written here, under its name. Needs no model, no GPU and none of the heavy libraries.
    """
    path = api.report(run, outputs=outputs, to=to)
    click.echo(path)
    if open_it:
        click.launch(path.as_uri())
