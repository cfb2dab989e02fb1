"""Options that several verbs share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ndld_flow.base.text import escaped_json

Command = TypeVar("Command", bound=Callable[..., Any])


class NamedPath(click.Path):
    """A path to write to. An empty one is refused: that is what a shell makes of a variable which is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click's
        if not str(value):
            self.fail("it is empty. Give a name; this folder is `.`", param, ctx)
        return super().convert(value, param, ctx)


def outputs_option(command: Command) -> Command:
    """`--outputs DIR`."""
    return click.option(
        "--outputs",
        "-o",
        type=NamedPath(file_okay=False, path_type=Path),
        default=Path("outputs"),
        show_default=True,
        envvar="NDLD_FLOW_OUTPUTS",
        help="Folder of the store, the runs and the tags (or set NDLD_FLOW_OUTPUTS).",
    )(command)


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def recipe_options(command: Command) -> Command:
    """What `run` and `plan` take."""
    for option in (
        click.option(
            "--multirun",
            "-m",
            is_flag=True,
            help="Sweep over what has several values: -m steps.speed.threads=1,2,4; also =range(1,9), =choice(a,b).",
        ),
        click.option(
            "--trust",
            is_flag=True,
            help="Allow code that the recipe names: `steps_from:`, plugins, libraries, engines'.",
        ),
        click.option(
            "--force", "-f", multiple=True, metavar="STEP", help="Run this step though nothing changed (or `all`)."
        ),
        click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
        click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml"),
    ):
        command = option(command)
    return command


def sweep_options(command: Command) -> Command:
    """What `run` takes for sweeps."""
    for option in (
        click.option(
            "--jobs",
            "-j",
            type=click.IntRange(min=1),
            metavar="N",
            help="Of a sweep: N worker processes for steps that do not measure [default: all in this process].",
        ),
        click.option(
            "--ray", default="", metavar="ADDRESS", help="Of a sweep: Ray does the steps: auto, HOST:PORT, local."
        ),
        click.option(
            "--remote-store",
            default="",
            metavar="URL",
            help="With --ray, where its machines share no folder: s3://, gs://, ... between them.",
        ),
        click.option(
            "--apply",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="BEST.yaml",
            help="Of a sweep: write the best point's settings as a plain recipe, without `sweep:`.",
        ),
    ):
        command = option(command)
    return command


def files_option(command: Command) -> Command:
    """`--from FILE.py`: steps of one's own."""
    return click.option(
        "--from",
        "files",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.py",
        help="A Python file with a step of your own (its code is run).",
    )(command)


def rules_options(command: Command) -> Command:
    """`--allow`, `--metric`, `--threshold`: which differences count."""
    for option in (
        click.option("--threshold", "-t", metavar="SHARE", help="Relative difference that counts [default: 3 %]."),
        click.option("--metric", "-m", metavar="METRIC", help="The metric that decides [default: latency.min]."),
        click.option(
            "--allow",
            "-a",
            multiple=True,
            metavar="WHAT",
            help="Compare although this differs: hardware, batch, ...; `unknown`: although it was not recorded.",
        ),
    ):
        command = option(command)
    return command


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(escaped_json(json.dumps(value, indent=1, ensure_ascii=False)))
