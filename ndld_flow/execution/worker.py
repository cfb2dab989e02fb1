"""A worker process: reads one order per line, computes it, and answers, until its standard input closes.

Libraries are imported once, by the first order that needs them. If the driver dies, so does the worker, with all
processes that the steps have started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from pathlib import Path
from typing import NoReturn

from ndld_flow.base.errors import naming_step
from ndld_flow.base.text import shortened
from ndld_flow.execution.executor import compute_steps
from ndld_flow.execution.messages import (
    Answer,
    Done,
    Logged,
    Progressed,
    Started,
    TaskOrder,
    Waits,
    describe_error,
    read_order,
)
from ndld_flow.processes.lines import Output
from ndld_flow.processes.worker import ORPHANED, ReportProgress, claim_input, run_under_watchdog, throttled
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.store.files import make_folder
from ndld_flow.store.hidden_credentials import hide_credentials, remember_secrets
from ndld_flow.store.store import Store

_LONGEST_LINE = 2000


class _Driver:
    """Passes reports of the steps of one task, which may come from several threads, to the driver."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._reports: dict[int, ReportProgress] = {}

    def progress(self, index: int, done: int, total: int, what: str) -> None:
        """Report the progress of the step at a position in the task, at a limited rate."""

        def send(done: int, total: int, what: str) -> None:
            self._output.send(Progressed(index=index, done=done, total=total, what=what))

        self._reports.setdefault(index, throttled(send))(done, total, what)

    def log(self, index: int, text: str) -> None:
        """Pass on a line of the log of the step at a position."""
        self._output.send(Logged(index=index, text=shortened(hide_credentials(text), _LONGEST_LINE)))


def main() -> NoReturn:
    run_under_watchdog()
    output, orders = Output(), _listen()
    while True:
        output.send(_answer(TaskOrder.from_line(orders.get()), output))


def _listen() -> queue.SimpleQueue[bytes]:
    """Return a queue of orders."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    source = os.fdopen(claim_input(), "rb")

    def read() -> None:
        for line in source:
            lines.put(line)
        os._exit(ORPHANED)  # the watchdog ends the rest

    threading.Thread(target=read, daemon=True).start()
    return lines


def _answer(order: TaskOrder, output: Output) -> Answer:
    store, driver = Store(Path(order.store)), _Driver(output)
    remember_secrets(order.secrets)
    try:
        make_folder(store.root)
        with contextlib.suppress(OSError):  # another machine may not have this directory; only data files need it
            os.chdir(order.directory)
        with naming_step(" and ".join(work.name for work in order.works)), explaining_disk("", store.root):
            task = read_order(order, store, driver.progress, driver.log)
            report_wait = lambda name, holder: output.send(Waits(name=name, holder=holder))  # noqa: E731
            records = compute_steps(task, store, report_wait, lambda: output.send(Started()))
        return Done(records=tuple(records))
    except (Exception, SystemExit) as error:
        return describe_error(error)


if __name__ == "__main__":
    main()
