"""Verbs that read a model run in a child process, so that a crash of native code is reported.

Steps of a run have worker processes; see `execution/`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

import click

from ndld_flow.cli.failure import print_failure
from ndld_flow.cli.verbs import import_verb, list_verbs
from ndld_flow.processes.worker import is_one_process

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
    from ndld_flow.processes.worker import end_with_parent

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
    from ndld_flow.base.errors import KilledError
    from ndld_flow.processes.launch import name_signal

    message = (
        f"{verb}: the process that read the model was killed by {name_signal(-code) or -code}. A library crashed on "
        "this model, or it ran out of memory; nothing was changed. `ndld-flow run` with the step `lint` may find the "
        "cause."
    )
    click.echo(f"error: {message}", err=True)
    print_failure(arguments, message, KilledError.exit_code, kind=KilledError.__name__)
    return KilledError.exit_code
