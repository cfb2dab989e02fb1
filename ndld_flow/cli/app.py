"""The program: a lazy group of verbs, its help, and the handling of errors.

`--help` imports click and nothing else: each verb's module is imported when that verb is used. Verbs that read a model
run in a child process, so that a crash of native code is reported; steps of a run have workers (`execution/`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import click

from ndld_flow import __version__
from ndld_flow.base.errors import MAX_PROBLEMS, KilledError, NdldFlowError, OutputsError, RecipeError, is_interruption
from ndld_flow.base.text import escaped_json, lazy_pattern, short_name, shortened, suggest, visible_text
from ndld_flow.cli.guarded_output import ReaderGoneError, guarded_output, open_missing_streams
from ndld_flow.cli.verbs import changing_steps, hint_at_step, import_verb, is_step, list_verbs
from ndld_flow.processes.worker import end_with_parent, is_one_process

_MAX_WORD = 300
"""Characters of one word in an error: names in models may be of any length."""
_MAX_TEXT = 500
"""Characters of one text of a problem, which quotes the recipe."""
_BUG = 3
"""The exit code of an error of this program."""
_PIPE_CLOSED = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""
_LONG = lazy_pattern(rf"\S{{{_MAX_WORD + 1},}}")

EPILOG = """
Exit codes: 0 success; 1 a check, gate or step failed; 2 the request is invalid; 3 a bug; 4 inconclusive;
5 a worker was killed; 130 interrupted; 141 the reader of the output closed the pipe.
"""


_COLUMNS = lazy_pattern(r"(\s*\S.*?\S)\s{3,}(\S.*)")
"""A command, or a keyword, and its explanation."""
_VERBATIM = "\b"
"""Begins a paragraph whose lines click leaves as they are."""


class HelpFormatter(click.HelpFormatter):
    """A formatter that breaks long lines of examples, which click leaves as they are, before their explanation or
    between words."""

    def write_text(self, text: str) -> None:
        width = max(self.width - self.current_indent, 20)
        paragraphs = text.split("\n\n")
        for number, paragraph in enumerate(paragraphs):
            if _VERBATIM in paragraph:
                paragraphs[number] = "\n".join(line for each in paragraph.split("\n") for line in _fold(each, width))
        super().write_text("\n\n".join(paragraphs))


class HelpContext(click.Context):
    """A context whose help fits the terminal."""

    formatter_class = HelpFormatter


def _fold(line: str, width: int) -> Iterator[str]:
    """Yield a line of at most `width` columns, or its parts, the later ones indented."""
    if len(line) <= width:
        yield line
        return
    lead = " " * (len(line) - len(line.lstrip()) + 4)
    if parts := _COLUMNS.fullmatch(line):
        yield from _fold(parts[1], width)
        line = lead + parts[2]
    import textwrap

    yield from textwrap.wrap(
        line, width, subsequent_indent=lead, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


class LazyGroup(click.Group):
    """A group that imports a verb when it is used."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*list_verbs(), *changing_steps()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if cmd_name in list_verbs():
            verb = import_verb(cmd_name)
            # Completion shows it; click would cut the first sentence at 45 characters.
            verb.command.short_help = list_verbs()[cmd_name]
            command = verb.command
        elif is_step(cmd_name):
            from ndld_flow.cli.step_command import find_step_command

            command = find_step_command(cmd_name)
        if command is not None:
            command.context_class = HelpContext
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(list_verbs().items()))
        with formatter.section("Steps"):
            formatter.write_text(f"ndld-flow STEP MODEL.onnx -o FILE  with {', '.join(changing_steps())}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in list_verbs() and not is_step(args[0]):
            from ndld_flow.cli.foreign_words import hint_at_verb

            word = args[0]
            hint = hint_at_step(word) or hint_at_verb(word) or suggest(word, self.list_commands(ctx))
            ctx.fail(f"there is no verb {word!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="ndld-flow %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def program(debug: bool) -> None:
    """Recipes that make ONNX models fast and keep them correct.

    \b
    1. ndld-flow optimize model.onnx --data photos/ -o fast.onnx
       find and prove the fastest variant that stays right
    2. ndld-flow init model.onnx
       ndld-flow run model.yaml
       write a recipe, to decide each step yourself, and run it
    3. ndld-flow compare model.onnx fast.onnx
       compare two models, or two runs: speed, accuracy, layers

    A recipe is a YAML file with a model and ordered steps. `run` executes it, stores every result by its digest, and
    writes a report. An example with a real model:

    \b
    ndld-flow init --example quickstart
    """


def main() -> NoReturn:
    """Run the program and exit with the code of its outcome (`base/errors.py`)."""
    open_missing_streams()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    watch_verb(arguments)
    with guarded_output():
        try:
            sys.exit(_flush(_do(arguments, debug)))
        except ReaderGoneError:
            _leave(_PIPE_CLOSED)


_SIGNAL_DELAY_S = 0.3
"""Seconds to wait before an interrupt is forwarded: on a terminal, the child receives Ctrl-C too."""


def watch_verb(arguments: Sequence[str]) -> None:
    """Return in a child process if the file of the verb has `READS_MODELS`; this process then exits with its code.

    Returns at once for other verbs, on systems without fork, and if all work stays in one process.
    """
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if is_one_process() or verb not in list_verbs() or not hasattr(os, "fork"):
        return
    if not hasattr(import_verb(verb), "READS_MODELS"):
        return
    watcher, child = os.getpid(), os.fork()
    if child:
        sys.exit(_wait(verb, child, arguments))
    end_with_parent(watcher)


def _wait(verb: str, child: int, arguments: Sequence[str]) -> int:
    """Return the child's exit code, or that of a killed worker."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            time.sleep(_SIGNAL_DELAY_S)
        os.kill(child, number)  # not reaped yet

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    from ndld_flow.processes.launch import name_signal

    message = (
        f"{verb}: the process that read the model was killed by {name_signal(-code) or -code}. A library crashed on "
        "this model, or it ran out of memory; nothing was changed. `ndld-flow run` with the step `lint` may find the "
        "cause."
    )
    click.echo(f"error: {message}", err=True)
    print_failure(arguments, message, KilledError.exit_code, kind=KilledError.__name__)
    return KilledError.exit_code


def _do(arguments: Sequence[str], debug: bool) -> int:
    try:
        colour = False if os.environ.get("NO_COLOR") else None
        return program.main(arguments, prog_name="ndld-flow", standalone_mode=False, color=colour) or 0
    except (click.exceptions.Abort, KeyboardInterrupt):  # click turns KeyboardInterrupt into Abort
        return _interrupted()
    except click.ClickException as raised:
        error = _with_hint(raised) if isinstance(raised, click.NoSuchOption) else raised
        message = io.StringIO()
        error.show(message)
        click.echo(_printable(message.getvalue()), nl=False, err=True)
        print_failure(arguments, _printable(error.format_message()), error.exit_code, kind="UsageError")
        return error.exit_code
    except ReaderGoneError:
        raise
    except Exception as error:
        if is_interruption(error):
            return _interrupted()
        if debug:
            raise
        return _explain(error, arguments)


def _with_hint(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with what to write instead of the option; without a hint, it names similar options."""
    from ndld_flow.cli.foreign_words import hint_at_option

    verb = "" if error.possibilities or error.ctx is None else error.ctx.info_name or ""
    hint = hint_at_option(error.option_name, verb)
    text = f"there is no option {error.option_name}; {hint}."
    return click.UsageError(text, ctx=error.ctx) if hint else error


def _interrupted() -> NoReturn:
    click.echo("interrupted; finished work is kept, run again to continue", err=True)
    _leave(130)


def _flush(code: int) -> int:
    """Write buffered output; return the exit code, or that of a failed write if everything else succeeded."""
    try:
        sys.stdout.flush()
    except OutputsError as error:
        return code or _explain(error, ())
    return code


def _leave(code: int) -> NoReturn:
    """Exit at once: threads of native libraries could keep an interrupted program alive."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ReaderGoneError, OutputsError):
            stream.flush()
    os._exit(code)


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error for people, and as JSON if the arguments request it; return the exit code."""
    if isinstance(error, NdldFlowError):
        text = re.sub(
            r"\n\s*\n", "\n", _printable(str(error))
        )  # a name may contain empty lines, but an error is one paragraph
        problems = error.problems if isinstance(error, RecipeError) else ()
        shown = f"error: {len(problems)} problems\n{text}" if len(problems) > 1 else f"error: {text}"
        click.echo(_wrapped(shown), err=True)
        print_failure(arguments, text, error.exit_code, error=error)
        return error.exit_code
    from ndld_flow.cli.public_functions import explain_system_error

    message = explain_system_error(error)
    if message:
        click.echo(_wrapped(f"error: {_printable(message)}"), err=True)
        print_failure(arguments, _printable(message), OutputsError.exit_code, kind=OutputsError.__name__)
        return OutputsError.exit_code
    text = write_bug(error)
    click.echo(text, err=True)
    print_failure(arguments, text, _BUG, kind="Bug")
    return _BUG


def _wrapped(text: str) -> str:
    """Return an error with its lines broken between words, for a terminal; a log gets them whole."""
    from ndld_flow.cli.terminal import is_terminal, width_of, wrapped

    if not is_terminal(sys.stderr):
        return text
    width = width_of(sys.stderr)
    return "\n".join(wrapped(line, width, " " * (len(line) - len(line.lstrip()) + 2)) for line in text.split("\n"))


def _printable(text: str) -> str:
    """Return an error's text without credentials and control characters, and with long words shortened."""
    from ndld_flow.store.hidden_credentials import hide_credentials

    return _LONG.sub(lambda word: shortened(word[0], _MAX_WORD), visible_text(hide_credentials(text)))


def print_failure(
    arguments: Sequence[str], message: str, exit_code: int, *, kind: str = "", error: NdldFlowError | None = None
) -> None:
    """Print an error as JSON if the arguments request JSON; `kind` is the class of the error by default."""
    if "--json" not in arguments:
        return
    from ndld_flow.execution.events import Failure, Problem
    from ndld_flow.store.hidden_credentials import hide_credentials

    def printable(text: str) -> str:
        return short_name(hide_credentials(text), _MAX_TEXT)

    problems = error.problems[:MAX_PROBLEMS] if isinstance(error, RecipeError) else ()
    failure = Failure(
        kind=kind or type(error).__name__,
        message=message,
        step=error.step if error is not None else "",
        exit_code=exit_code,
        problems=tuple(
            Problem(
                where=printable(each.where),
                path=printable(each.path),
                what=printable(each.what),
                hint=printable(each.hint),
            )
            for each in problems
        ),
    )
    with contextlib.suppress(ReaderGoneError, OutputsError):  # the error itself decides the exit code
        click.echo(escaped_json(failure.model_dump_json()))
        sys.stdout.flush()


_LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "numpy", "protobuf", "pydantic", "hydra-core", "click")


def write_bug(error: BaseException) -> str:
    """Write versions and the traceback to a file; return the message that names it."""
    import platform
    import traceback

    from ndld_flow.execution.workers import WorkerBugError
    from ndld_flow.machine.versions import read_version
    from ndld_flow.store.hidden_credentials import hide_credentials

    text = "\n".join(
        [
            f"command: {sys.argv}",
            f"python: {sys.version}",
            f"platform: {platform.platform()}",
            *(f"{library}: {read_version(library)}" for library in _LIBRARIES),
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    is_complete = isinstance(error, WorkerBugError)  # it has the name of the worker's exception
    shown = str(error) if is_complete else f"{type(error).__name__}: {error}"
    return (
        f"bug: {hide_credentials(visible_text(shown))}\n"
        f"This is a bug in ndld_flow or in a step. {_keep(hide_credentials(text))} Finished work is kept."
    )


def _keep(text: str) -> str:
    """Write versions and traceback to a file; return a sentence with its path."""
    import tempfile
    import time

    try:
        # The folder is shared: mkstemp creates a private file under a name that nobody can have taken for a link.
        descriptor, path = tempfile.mkstemp(prefix=f"ndld-flow-bug-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        return f"No details could be written ({error.strerror}); `ndld-flow --debug ...` shows the traceback."
    return f"Versions and traceback are in {path}; please send it with the recipe."
