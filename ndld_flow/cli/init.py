"""`ndld-flow init`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api


@click.command("init", short_help="Write a commented recipe for a model.")
@click.argument("model", required=False, type=click.Path(path_type=Path), metavar="MODEL.onnx")
@click.argument("target", required=False, type=click.Path(dir_okay=False, path_type=Path), metavar="[RECIPE.yaml]")
@click.option("--example", metavar="NAME", help="Write an example recipe instead, such as `quickstart`, to pipelines/.")
@click.option("--overwrite", is_flag=True, help="Replace an existing RECIPE.yaml.")
def command(model: Path | None, target: Path | None, example: str | None, overwrite: bool) -> None:
    """Write a commented recipe for a model, with its inputs filled in. It is ready to run.

    \b
      ndld-flow init model.onnx
      ndld-flow init --example quickstart        # a real detector, downloaded by the first run
    """
    if example is not None and model is None:
        path = api.init_example(example, overwrite=overwrite)
    elif model is not None and example is None:
        path = api.init(model, target, overwrite=overwrite)
    else:
        raise click.UsageError("Give a model, or --example NAME.")
    click.echo(f"{path}\nRun it with: ndld-flow run {path}")
