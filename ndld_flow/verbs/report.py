"""Redraw the report of a run or a sweep from its records.

RUN is a tag, a recipe's name (its newest run or sweep), an id or its first characters, a path, or `latest`; the
suffix `#17` or `#best` names a point of a sweep. Or it is a profile that belongs to no run (exports of trtexec, a
TREx folder, ONNX Runtime's profile, a profile.json) or an engine (the output of TensorRT's engine inspector,
.trt.json, or a build.json), whose page is written to the current directory. No model, GPU or inference library is
needed.

`--to layers.xlsx` and `--to layers.csv` write the layers of any of them, or of RUN:STEP, as a table instead.
"""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.options import Given, options_of, outputs_option
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, public


@click.argument("run", default="latest")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File for the page of a profile or an engine; with .xlsx or .csv, for the layers.",
)
@public
def report(run: str, *, outputs: str | Path = DEFAULT_OUTPUTS, to: str | Path | None = None) -> Path:
    """Draw the report of a run or a sweep (tag, recipe, id, path), or of a sweep's point (`RUN#17`, `RUN#best`), from
    its records again; return its path.

    The page of a profile file or a folder of exports is written to `to`, or to the current directory. If `to` ends in
    `.xlsx` or `.csv`, the layers of the subject are written there as a table.
    """
    from ndld_flow.runs.draw import draw_any

    return draw_any(run, Path(outputs), Path(to) if to is not None else None)


@click.command("report", help=__doc__, params=options_of(report))
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
@outputs_option
def command(open_it: bool, **options: Given) -> None:
    path = report(**options)
    click.echo(path)
    if open_it:
        click.launch(path.as_uri())
