"""The last line of a verb's JSON if the verb fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import click

from ndld_flow.base.errors import MAX_PROBLEMS, NdldFlowError, OutputsError, RecipeError
from ndld_flow.base.text import escaped_json, short_name
from ndld_flow.cli.guarded_output import ReaderGoneError

_MAX_TEXT = 500
"""Characters of one text of a problem, which quotes the recipe."""


def print_failure(
    arguments: Sequence[str], message: str, exit_code: int, *, kind: str = "", error: NdldFlowError | None = None
) -> None:
    """Print an error as JSON if the arguments request JSON; `kind` is the class of the error by default."""
    if "--json" not in arguments:
        return
    from ndld_flow.runner.events import Failure, Problem
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
