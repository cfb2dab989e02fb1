"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import click

from ndld_flow.base.text import escaped_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, Value, VerbOutput

if TYPE_CHECKING:
    from ndld_flow.execution.events import Event

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


class NewFile(NamedPath):
    """A file to write or replace. A name with another suffix is refused: by a slip, a page would replace a model."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as click's
        path = super().convert(value, param, ctx)
        if path.suffix.lower() not in self._suffixes:
            self.fail(f"{path}: its name must end in {' or '.join(filter(None, self._suffixes))}", param, ctx)
        return path


def _all(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds several arguments and options, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


outputs_option = click.option(
    "--outputs",
    type=NamedPath(file_okay=False, path_type=Path),
    default=Path(DEFAULT_OUTPUTS),
    show_default=True,
    envvar="NDLD_FLOW_OUTPUTS",
    help="Folder of the store, the runs and the tags (or set NDLD_FLOW_OUTPUTS).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
loudness_options = _all(
    click.option(
        "--quiet", "-q", "loudness", flag_value="quiet", help="Print only problems, the verdict and the result."
    ),
    click.option("--verbose", "-v", "loudness", flag_value="verbose", help="Print the log of each step while it runs."),
)
"""The last one counts."""


recipe_options = _all(
    click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml"),
    click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]..."),
    click.option(
        "--force", "-f", multiple=True, metavar="STEP", help="Run this step (or `all`) even if nothing changed."
    ),
    click.option(
        "--trust", is_flag=True, help="Allow code that the recipe names: `steps_from:`, plugins, libraries, engines."
    ),
    click.option(
        "--multirun",
        "-m",
        is_flag=True,
        help="Sweep over settings with several values: steps.speed.threads=1,2,4; also range(1,9), choice(a,b).",
    ),
)
"""Those of `run` and `plan`."""

target_option = click.option(
    "--on",
    default="",
    metavar="TARGET",
    help="Run the steps that need a device on this machine: a name in the settings or the recipe, or ssh://HOST.",
)

cache_options = _all(
    click.option(
        "--cache",
        metavar="URL",
        help="Use results of a shared cache: a folder, s3://, gs://, ... (or set NDLD_FLOW_CACHE).",
    ),
    click.option("--no-cache", is_flag=True, help="Use no shared cache. (--force all computes every step again.)"),
)


def choose_url(cache: str | None, no_cache: bool) -> str | None:
    """Return the cache that the options name: empty for none, None for that of the settings."""
    if no_cache and cache is not None:
        raise click.UsageError("--cache and --no-cache exclude each other.")
    if cache == "":
        raise click.UsageError("--cache: the URL is empty; `--no-cache` uses none.")
    return "" if no_cache else cache


sweep_options = _all(
    click.option(
        "--best",
        "apply",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="BEST.yaml",
        help="Sweeps: write the best point as a plain recipe, without `sweep:`.",
    ),
    click.option(
        "--ray", default="", metavar="ADDRESS", help="Run the steps on a Ray cluster: auto, HOST:PORT, local."
    ),
    click.option(
        "--jobs",
        "-j",
        type=click.IntRange(min=1),
        metavar="N",
        help="Sweeps: N worker processes for steps that do not measure [default: none].",
    ),
)

files_option = click.option(
    "--from",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.py",
    help="A Python file with a step of your own (its code runs).",
)

gate_option = click.option(
    "--gate", "-g", "gates", multiple=True, metavar="GATE", help="A condition of the comparison; may be repeated."
)
data_option = click.option(
    "--data", multiple=True, metavar="[INPUT=]PATH", help="A folder, a glob or files for an input of the model."
)
tokenizer_option = click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="tokenizer.json, for lines of text in a .txt."
)
shapes_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Shape of an input of the model, or `scalar`."
)

rules_options = _all(
    click.option(
        "--allow",
        "-a",
        multiple=True,
        metavar="WHAT",
        help="Compare despite this difference: hardware, batch, ...; `unknown`: despite unrecorded circumstances.",
    ),
    click.option("--metric", "-m", metavar="METRIC", help="The metric that decides [default: latency.min]."),
    click.option("--threshold", "-t", metavar="SHARE", help="Relative difference that counts [default: 3 %]."),
)
"""They define the differences that count."""


def refuse_missing(models: Iterable[str | Path], data: Iterable[str] = ()) -> None:
    """Raise the error for a file that is missing or no model before the libraries are imported that would find it, a
    second later."""
    from ndld_flow.base.errors import require_utf8
    from ndld_flow.models.external_files import refuse_other_files
    from ndld_flow.recipe.sample_files import require_data

    for model in map(Path, models):
        require_utf8(str(model))
        if model.suffix == ".onnx" and ":" not in str(model):
            refuse_other_files(model)
    for text in data:
        if not Path(text).exists():
            require_data(text, text.partition("=")[2] or text)


def print_notices(event: Event) -> None:
    """Print what the user should know while a verb works, to standard error."""
    if event.event == "notice":
        click.echo(f"warning: {event.text}" if event.warning else event.text, err=True)


def print_json(output: VerbOutput[Value], value: Value) -> None:
    """Print the result of a verb as JSON on standard output."""
    from ndld_flow.cli.verb_output import format_value

    click.echo(escaped_json(format_value(output, value)))
