"""The program: a lazy group of verbs, and what becomes of errors.

`--help` imports click and nothing else: each verb's module is imported when that verb is used.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from ndld_flow import __version__
from ndld_flow.base.errors import NOT_UTF8, NdldFlowError, OutputsError, RecipeError
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.cli.guarded_output import ReaderGoneError, guarded_output, open_missing_streams
from ndld_flow.cli.watch import watch_verb

_MOST_LETTERS = 300
"""Of a name in an error: whoever gave it may have liked it longer."""
_PIPE_CLOSED = 141
"""What a shell reports of a program that SIGPIPE ended."""
_LONG = re.compile(rf"\S{{{_MOST_LETTERS + 1},}}")

VERBS = {
    "run": "Run a recipe; what is done already is not done again.",
    "plan": "Say what a run would do, and why, without doing it.",
    "profile": "Measure one model, and say where its time goes.",
    "compare": "Compare runs, profiles and exports, and decide.",
    "diff": "Say what is different between two models.",
    "noise": "Learn which differences mean nothing on this machine.",
    "inspect": "Look things up in a model: its summary, nodes, tensors, weights.",
    "draw": "Draw the graph of a model or an engine as SVG, PNG, JPEG or a page.",
    "report": "Draw a run's or a sweep's report again from its records.",
    "runs": "List runs and sweeps, newest first.",
    "tag": "Give a run or a sweep a lasting name.",
    "steps": "List the steps, or explain one with all its settings.",
    "ops": "Explain an operator of any opset, or list them by family.",
    "schema": "Write the JSON Schema of recipes, for editors.",
    "init": "Write a commented recipe for a model.",
    "verify": "Check every stored artifact against its digest.",
    "gc": "Free what no kept run or sweep needs.",
    "doctor": "Say what works on this machine, and how to get what does not.",
}

EPILOG = """
\b
Begin with:   ndld-flow run pipelines/quickstart.yaml
For a model:  ndld-flow init MODEL.onnx

Exit codes: 0 all well; 1 a check, gate or step failed; 2 the request is wrong; 3 a bug; 4 inconclusive;
5 a worker was killed; 130 interrupted; 141 whoever read the output closed the pipe.
"""


class LazyGroup(click.Group):
    """Knows its verbs by name and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"ndld_flow.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from ndld_flow.base.text import suggest

            ctx.fail(f"there is no verb {args[0]!r}; {suggest(args[0], VERBS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="ndld-flow %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def program(debug: bool) -> None:
    """Recipes that make ONNX models fast and keep them correct.

    A recipe is a YAML file with a model and ordered steps. `run` carries it out, keeps every result by its digest,
    and writes a report.
    """


def main() -> NoReturn:
    """Run the program and exit with the code that errors.py tells."""
    open_missing_streams()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us politely gets our cleaning up too
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    watch_verb(arguments)
    with guarded_output():
        try:
            sys.exit(_flush(_do(arguments, debug)))
        except ReaderGoneError:
            _leave(_PIPE_CLOSED)


def _do(arguments: Sequence[str], debug: bool) -> int:
    try:
        return program.main(arguments, prog_name="ndld-flow", standalone_mode=False) or 0
    except (click.exceptions.Abort, KeyboardInterrupt):  # click turns the one into the other
        click.echo("interrupted; what was finished is kept, run again to go on", err=True)
        _leave(130)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        click.echo(_tellable(told.getvalue()), nl=False, err=True)
        return error.exit_code
    except ReaderGoneError:
        raise
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _flush(code: int) -> int:
    """Write what is still buffered; return the exit code, that of an error where all went well but this."""
    try:
        sys.stdout.flush()
    except OutputsError as error:
        return code or _explain(error)
    return code


def _leave(code: int) -> NoReturn:
    """End at once: threads of native libraries must not keep an interrupted program alive."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ReaderGoneError, OutputsError):
            stream.flush()
    os._exit(code)


def _explain(error: Exception) -> int:
    """Tell a person about an error; returns the exit code."""
    if isinstance(error, NdldFlowError):
        click.echo(_say(error), err=True)
        return error.exit_code
    from ndld_flow.cli.bug import write_bug

    told = _explain_surroundings(error)
    if told:
        click.echo(f"error: {_tellable(told)}", err=True)
        return OutputsError.exit_code
    click.echo(write_bug(error), err=True)
    return 3


def _explain_surroundings(error: Exception) -> str:
    """Return the message for an error that the disk, the current directory or a file name caused, or an empty one."""
    from ndld_flow.runner.disk import explain_disk

    if isinstance(error, OSError):
        if not _has_current_directory():
            return "the current directory was deleted. Change to one that exists, and run again."
        return explain_disk(error, Path())  # of a verb that writes little: files that the user names, tags
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return f"{NOT_UTF8}: {error.object}"
    return ""


def _has_current_directory() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _say(error: NdldFlowError) -> str:
    told = re.sub(r"\n\s*\n", "\n", _tellable(str(error)))  # a name may hold some; it stays one paragraph
    if isinstance(error, RecipeError) and len(error.problems) > 1:
        return f"error: {len(error.problems)} mistakes\n{told}"
    return f"error: {told}"


def _tellable(text: str) -> str:
    """An error without credentials, control characters, and names that are longer than a paragraph."""
    from ndld_flow.store.hidden_credentials import hide_credentials

    return _LONG.sub(lambda word: shortened(word[0], _MOST_LETTERS), visible_text(hide_credentials(text)))
