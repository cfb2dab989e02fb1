"""`ndld-flow init`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api


@click.command("init", short_help="Write a commented recipe for a model.")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.onnx")
@click.argument("target", required=False, type=click.Path(dir_okay=False, path_type=Path), metavar="[RECIPE.yaml]")
@click.option("--overwrite", is_flag=True, help="Replace an existing RECIPE.yaml.")
def command(model: Path, target: Path | None, overwrite: bool) -> None:
    """Write a commented recipe for a model, with its inputs filled in. It is ready to run."""
    path = api.init(model, target, overwrite=overwrite)
    click.echo(f"{path}\nRun it with: ndld-flow run {path}")
