"""Errors: the last line of a verb's JSON if the verb fails, and the message for a bug with a file to send."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from ndld_flow.base.errors import MAX_PROBLEMS, NdldFlowError, OutputsError, RecipeError
from ndld_flow.base.text import escaped_json, short_name, visible_text
from ndld_flow.cli.guarded_output import ReaderGoneError

_MAX_TEXT = 500
"""Characters of one text of a problem, which quotes the recipe."""


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


LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "numpy", "protobuf", "pydantic", "hydra-core", "click")


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
            *(f"{library}: {read_version(library)}" for library in LIBRARIES),
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
