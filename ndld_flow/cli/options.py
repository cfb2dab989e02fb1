"""Options that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import click

from ndld_flow.base.text import escaped_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS
from ndld_flow.cli.verbs import Value, VerbOutput

if TYPE_CHECKING:
    from ndld_flow.runner.events import Event

Loudness: TypeAlias = Literal["quiet", "normal", "verbose"]
"""`quiet`: problems, the verdict and the results; `verbose`: the log of each step too."""
Given: TypeAlias = Any
"""The value of any option that a command passes on to the function of its verb."""
Command = TypeVar("Command", bound=Callable[..., Any])


def options_of(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return the arguments and options that decorators of click declare for the function of a verb."""
    return list(reversed(function.__click_params__))  # type: ignore[attr-defined]  # as click's `command` reads them


class NamedPath(click.Path):
    """A path to write to. The empty path, which a shell makes of an unset variable, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click's
        if not str(value):
            self.fail("the path is empty; the current directory is `.`", param, ctx)
        return super().convert(value, param, ctx)


def outputs_option(command: Command) -> Command:
    """Add `--outputs DIR`."""
    return click.option(
        "--outputs",
        type=NamedPath(file_okay=False, path_type=Path),
        default=Path(DEFAULT_OUTPUTS),
        show_default=True,
        envvar="NDLD_FLOW_OUTPUTS",
        help="Folder of the store, the runs and the tags (or set NDLD_FLOW_OUTPUTS).",
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def loudness_options(command: Command) -> Command:
    """Add `--quiet` and `--verbose`; the last one counts."""
    for option in (
        click.option(
            "--verbose", "-v", "loudness", flag_value="verbose", help="Print the log of each step while it runs."
        ),
        click.option(
            "--quiet", "-q", "loudness", flag_value="quiet", help="Print only problems, the verdict and the result."
        ),
    ):
        command = option(command)
    return command


def device_timeout_option(command: Command) -> Command:
    """Add `--device-timeout`, which sets the environment variable for this process and its workers."""
    return click.option(
        "--device-timeout",
        metavar="TIME",
        expose_value=False,
        callback=_set_device_timeout,
        help="Wait at most this long, such as `30 min`, for a device that another process measures on; then measure "
        f"all the same, which the result records. `0` does not wait. (Or set {_DEVICE_TIMEOUT}.)",
    )(command)


_DEVICE_TIMEOUT = "NDLD_FLOW_DEVICE_TIMEOUT"


def _set_device_timeout(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if not value:
        return
    from ndld_flow.base.quantities import parse_duration_ms

    try:
        parse_duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    before = os.environ.get(_DEVICE_TIMEOUT)
    os.environ[_DEVICE_TIMEOUT] = value
    context.call_on_close(partial(_restore, before))


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(_DEVICE_TIMEOUT, None)
    else:
        os.environ[_DEVICE_TIMEOUT] = before


def recipe_options(command: Command) -> Command:
    """Add the arguments and options of `run` and `plan`."""
    for option in (
        click.option(
            "--multirun",
            "-m",
            is_flag=True,
            help="Sweep over settings with several values: steps.speed.threads=1,2,4; also range(1,9), choice(a,b).",
        ),
        click.option(
            "--trust",
            is_flag=True,
            help="Allow code that the recipe names: `steps_from:`, plugins, libraries, engines.",
        ),
        click.option(
            "--force", "-f", multiple=True, metavar="STEP", help="Run this step (or `all`) even if nothing changed."
        ),
        click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
        click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml"),
    ):
        command = option(command)
    return command


def target_option(command: Command) -> Command:
    """Add `--on TARGET`."""
    return click.option(
        "--on",
        default="",
        metavar="TARGET",
        help="Run the steps that need a device on this machine: a name in the settings or the recipe, or ssh://HOST.",
    )(command)


def cache_options(command: Command) -> Command:
    """Add `--cache URL` and `--no-cache`."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Use no shared cache. (--force all computes every step again.)"),
        click.option(
            "--cache",
            metavar="URL",
            help="Use results of a shared cache: a folder, s3://, gs://, ... (or set NDLD_FLOW_CACHE).",
        ),
    ):
        command = option(command)
    return command


def choose_url(cache: str | None, no_cache: bool) -> str | None:
    """Return the cache that the options name: empty for none, None for that of the settings."""
    if no_cache and cache is not None:
        raise click.UsageError("--cache and --no-cache exclude each other.")
    if cache == "":
        raise click.UsageError("--cache: the URL is empty; `--no-cache` uses none.")
    return "" if no_cache else cache


def sweep_options(command: Command) -> Command:
    """Add the options of `run` for sweeps."""
    for option in (
        click.option(
            "--jobs",
            "-j",
            type=click.IntRange(min=1),
            metavar="N",
            help="Sweeps: N worker processes for steps that do not measure [default: none].",
        ),
        click.option(
            "--ray", default="", metavar="ADDRESS", help="Run the steps on a Ray cluster: auto, HOST:PORT, local."
        ),
        click.option(
            "--best",
            "apply",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="BEST.yaml",
            help="Sweeps: write the best point as a plain recipe, without `sweep:`.",
        ),
    ):
        command = option(command)
    return command


def files_option(command: Command) -> Command:
    """Add `--from FILE.py`, for the user's own steps."""
    return click.option(
        "--from",
        "files",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.py",
        help="A Python file with a step of your own (its code runs).",
    )(command)


def rules_options(command: Command) -> Command:
    """Add `--allow`, `--metric` and `--threshold`, which define the differences that count."""
    for option in (
        click.option("--threshold", "-t", metavar="SHARE", help="Relative difference that counts [default: 3 %]."),
        click.option("--metric", "-m", metavar="METRIC", help="The metric that decides [default: latency.min]."),
        click.option(
            "--allow",
            "-a",
            multiple=True,
            metavar="WHAT",
            help="Compare despite this difference: hardware, batch, ...; `unknown`: despite unrecorded circumstances.",
        ),
    ):
        command = option(command)
    return command


def print_notices(event: Event) -> None:
    """Print what the user should know while a verb works, to standard error."""
    if event.event == "notice":
        click.echo(f"warning: {event.text}" if event.warning else event.text, err=True)


def print_json(output: VerbOutput[Value], value: Value) -> None:
    """Print the result of a verb as JSON on standard output."""
    from ndld_flow.cli.verb_output import format_value

    click.echo(escaped_json(format_value(output, value)))
