"""A worker process: reads one order per line, computes it, and answers, until its standard input closes.

Libraries are imported once, by the first order that needs them. If the driver dies, so does the worker, with all
processes that the steps have started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import NoReturn

from ndld_flow.base import errors
from ndld_flow.base.errors import NdldFlowError, RecipeError, RequestError, naming_step
from ndld_flow.base.text import shortened
from ndld_flow.execution.executor import compute_steps
from ndld_flow.execution.messages import (
    Answer,
    Done,
    Failed,
    Line,
    Logged,
    Progressed,
    Refused,
    Started,
    TaskOrder,
    Waits,
    read_order,
)
from ndld_flow.processes.worker import ORPHANED, ReportProgress, claim_output, run_under_watchdog, throttled
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.store.files import make_folder
from ndld_flow.store.hidden_credentials import hide_credentials, remember_secrets
from ndld_flow.store.store import Store

_LONGEST_LINE = 2000


class _Output:
    """Writes messages to the driver, one line at a time; steps may report from several threads."""

    def __init__(self, output: int) -> None:
        self._file = os.fdopen(output, "wb")
        self._lock = threading.Lock()
        self._reports: dict[int, ReportProgress] = {}

    def send(self, line: Line) -> None:
        with self._lock:
            self._file.write(line.to_line().encode())
            self._file.flush()

    def progress(self, place: int, done: int, total: int, what: str) -> None:
        """Report the progress of the step at a position in the task, at a limited rate."""
        report = self._reports.get(place) or self._reports.setdefault(
            place, throttled(partial(self._send_progress, place))
        )
        report(done, total, what)

    def log(self, place: int, text: str) -> None:
        """Pass on a line of the log of the step at a position."""
        self.send(Logged(place=place, text=shortened(hide_credentials(text), _LONGEST_LINE)))

    def _send_progress(self, place: int, done: int, total: int, what: str) -> None:
        self.send(Progressed(place=place, done=done, total=total, what=what))


def main() -> NoReturn:
    run_under_watchdog()
    output, orders = _Output(claim_output()), _listen()
    while True:
        output.send(_answer(TaskOrder.from_line(orders.get()), output))


def _listen() -> queue.SimpleQueue[bytes]:
    """Return a queue of orders. Programs that steps start must not read them: they get an empty standard input."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def read() -> None:
        for line in source:
            lines.put(line)
        os._exit(ORPHANED)  # the watchdog ends the rest

    threading.Thread(target=read, daemon=True).start()
    return lines


def _answer(order: TaskOrder, output: _Output) -> Answer:
    store = Store(Path(order.store))
    remember_secrets(order.secrets)
    try:
        make_folder(store.root)
        with contextlib.suppress(OSError):  # another machine may not have this directory; only data files need it
            os.chdir(order.directory)
        with naming_step(" and ".join(work.name for work in order.works)), explaining_disk("", store.root):
            task = read_order(order, store, output.progress, output.log)
            report_wait = lambda name, holder: output.send(Waits(name=name, holder=holder))  # noqa: E731
            records = compute_steps(task, store, report_wait, lambda: output.send(Started()))
        return Done(records=tuple(records))
    except NdldFlowError as error:
        # The nearest class of error that the driver also has, and that can be created from a string.
        if isinstance(error, RecipeError):
            known = RequestError.__name__
        else:
            known = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        return Refused(error=known, text=error.message, step=error.step)
    except (Exception, SystemExit) as error:
        return Failed(error=type(error).__name__, text=str(error), traceback=traceback.format_exc())


if __name__ == "__main__":
    main()
