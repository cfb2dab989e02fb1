"""A worker: it reads one order a line, does it, and answers, until its standard input ends.

Libraries are imported once, by the first order that needs them. When the driver dies, so does this, with all that the
steps have started.
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
from ndld_flow.base.errors import NdldFlowError, RecipeError, RequestError
from ndld_flow.base.text import shortened
from ndld_flow.processes.watchdog import ORPHANED, keep_together
from ndld_flow.processes.worker import Tell, claim_output, seldom
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.executors.executor import compute_steps
from ndld_flow.runner.executors.messages import Answer, Begins, Done, Failed, Line, Logged, Progressed, Refused, Waits
from ndld_flow.runner.executors.orders import TaskOrder, read_order
from ndld_flow.store.sharing import make_folder
from ndld_flow.store.store import Store

_LONGEST_LINE = 2000


class _Voice:
    """Tells the driver, one line at a time; steps may tell from several threads."""

    def __init__(self, output: int) -> None:
        self._file = os.fdopen(output, "wb")
        self._lock = threading.Lock()
        self._tellers: dict[int, Tell] = {}

    def say(self, line: Line) -> None:
        with self._lock:
            self._file.write(line.to_line().encode())
            self._file.flush()

    def progress(self, place: int, done: int, total: int, what: str) -> None:
        """How far the step at a place in the task is; not too often."""
        teller = self._tellers.get(place) or self._tellers.setdefault(place, seldom(partial(self._say_progress, place)))
        teller(done, total, what)

    def log(self, place: int, text: str) -> None:
        """Pass on a line of the log of the step at a place."""
        self.say(Logged(place=place, text=shortened(text, _LONGEST_LINE)))

    def _say_progress(self, place: int, done: int, total: int, what: str) -> None:
        self.say(Progressed(place=place, done=done, total=total, what=what))


def main() -> NoReturn:
    keep_together()
    voice, orders = _Voice(claim_output()), _listen()
    while True:
        voice.say(_answer(TaskOrder.from_line(orders.get()), voice))


def _listen() -> queue.SimpleQueue[bytes]:
    """The orders as they come. What steps start must not read them: it gets an empty standard input."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def read() -> None:
        for line in source:
            lines.put(line)
        os._exit(ORPHANED)  # the keeper ends what is left

    threading.Thread(target=read, daemon=True).start()
    return lines


def _answer(order: TaskOrder, voice: _Voice) -> Answer:
    store = Store(Path(order.store))
    try:
        make_folder(store.root)
        with contextlib.suppress(OSError):  # on another machine there may be none; only data files would miss it
            os.chdir(order.directory)
        with explaining_disk(f"step {' and '.join(work.name for work in order.works)}", store.root):
            task = read_order(order, store, voice.progress, voice.log)
            records = compute_steps(task, store, lambda name: voice.say(Waits(name=name)), lambda: voice.say(Begins()))
        return Done(records=tuple(records))
    except NdldFlowError as error:
        return Refused(error=_known_class(error), text=str(error))
    except (Exception, SystemExit) as error:
        return Failed(error=type(error).__name__, text=str(error), traceback=traceback.format_exc())


def _known_class(error: NdldFlowError) -> str:
    """The nearest class that the driver has too, and that a text is enough for."""
    if isinstance(error, RecipeError):
        return RequestError.__name__
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)


if __name__ == "__main__":
    main()
