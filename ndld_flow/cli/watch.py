"""Verbs that read a model are done by a child process: should native code crash on the model, somebody is left to tell.

Steps of a run have worker processes of their own; see `runner/executors`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

import click

from ndld_flow.base.one_process import is_one_process

READING_MODELS = frozenset({"inspect", "diff", "draw", "init", "ops", "plan"})
_HEARD_S = 0.3
"""On a terminal the child hears Ctrl-C as well: by then it has."""


def watch_verb(arguments: Sequence[str]) -> None:
    """Return in a child process, where the verb reads models; this one ends as the child does.

    Returns at once for other verbs, where processes cannot fork, and where all is to be done in one process.
    """
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if is_one_process() or verb not in READING_MODELS or not hasattr(os, "fork"):
        return
    watcher, child = os.getpid(), os.fork()
    if child:
        sys.exit(_wait(verb, child))
    from ndld_flow.processes.watchdog import end_with_parent

    end_with_parent(watcher)


def _wait(verb: str, child: int) -> int:
    """Return the child's exit code, or that of a killed worker."""

    def hand_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            time.sleep(_HEARD_S)
        os.kill(child, number)  # nobody has buried it yet

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    from ndld_flow.base.errors import KilledError
    from ndld_flow.processes.launch import name_signal

    click.echo(
        f"error: {verb}: the process that read the model was killed by {name_signal(-code) or -code}. A library "
        "crashed on this model, or it ran out of memory; nothing was changed. `ndld-flow run` with the step `lint` may "
        "find what is wrong with it.",
        err=True,
    )
    return KilledError.exit_code
