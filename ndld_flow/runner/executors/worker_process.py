"""One worker as the driver sees it: it is given orders, heard, and ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ndld_flow.base.text import shortened, visible_text
from ndld_flow.processes.parent import end_group, name_signal
from ndld_flow.runner.executors.line import (
    Answer,
    Begins,
    Done,
    Failed,
    Logged,
    Message,
    Progressed,
    Refused,
    Waits,
    read_message,
)
from ndld_flow.runner.executors.orders import TaskOrder

# -P: a file `json.py` where the user stands must not be imported.
COMMAND = (sys.executable, "-P", "-m", "ndld_flow.runner.executors.worker")
_END_S = 5.0
_LAST_BYTES = 4096
_LAST_LINES = 3
_LAST_OF_FAILED = 10


class Ear(Protocol):
    """Who hears what a worker says while it is at work."""

    def progress(self, place: int, done: int, total: int, what: str) -> None: ...

    def logged(self, place: int, line: str) -> None: ...

    def waits(self, name: str) -> None: ...


class WorkerDiedError(Exception):
    """A worker ended without an answer; the text says how, and what it printed last."""

    def __init__(self, text: str, *, killed: bool) -> None:
        super().__init__(text)
        self.killed = killed
        """Whether a signal ended it."""


class WorkerStoppedError(Exception):
    """A worker was ended because its task took longer than it may."""


class WorkerProcess:
    """A process that does one order after another, until it is ended."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        with contextlib.ExitStack() as opened:
            self._said = opened.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
            opened.pop_all()
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def do(self, order: TaskOrder, ear: Ear) -> Answer:
        """Give an order and wait for the answer.

        Raises WorkerDiedError, WorkerStoppedError after the order's time, and what `ear` raises.
        """
        self._forget()
        with contextlib.ExitStack() as watch:
            with contextlib.suppress(OSError, ValueError):  # it has died; its code says why
                assert self._process.stdin is not None
                self._process.stdin.write(order.to_line().encode())
                self._process.stdin.flush()
            for line in self._process.stdout or ():
                message = read_message(line)
                if isinstance(message, Done | Refused | Failed):
                    for printed in () if isinstance(message, Done) else self._last_printed(_LAST_OF_FAILED):
                        ear.logged(0, f"printed: {printed}")
                    return message
                if isinstance(message, Begins) and order.timeout_s is not None:
                    watch.enter_context(_alarm(order.timeout_s, self._stop))
                elif message is not None:
                    _hand_on(message, ear)
        self.end()
        if self._stopped:
            raise WorkerStoppedError
        killed_by = self._killing_signal()
        how = f"was killed by {killed_by}" if killed_by else f"ended with code {self._process.returncode}"
        raise WorkerDiedError(f"{how}{self._last_words()}", killed=bool(killed_by))

    def _forget(self) -> None:
        """What was said before this order is of no interest; the offset is the worker's too."""
        self._said.seek(0)
        self._said.truncate()

    def _stop(self) -> None:
        self._stopped = True
        self.end()

    def end(self) -> None:
        """End it and all that it started, at once. Any thread may call this, and often."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)  # its keeper ends all, as far as it has sessions of its own too
        except subprocess.TimeoutExpired:
            end_group(self._process)

    def release(self) -> None:
        """End it, and give back what it took here. Only who gives it orders may call this."""
        self.end()
        end_group(self._process)
        self._said.close()

    def _killing_signal(self) -> str:
        """Return the name of the signal that ended it; empty where it ended by itself."""
        code = self._process.returncode
        return name_signal(-code if code < 0 else code - 128)

    def _last_words(self) -> str:
        last = self._last_printed(_LAST_LINES)
        return f"; it said last: {' / '.join(last)}" if last else ""

    def _last_printed(self, count: int) -> list[str]:
        """Return the last lines that the worker, and libraries in it, printed since this order."""
        size = self._said.seek(0, 2)
        self._said.seek(max(0, size - _LAST_BYTES))
        lines = visible_text(self._said.read().decode(errors="replace")).split("\n")
        return [shortened(line.strip(), 300) for line in lines if line.strip()][-count:]


def _hand_on(message: Message, ear: Ear) -> None:
    if isinstance(message, Progressed):
        ear.progress(message.place, message.done, message.total, message.what)
    elif isinstance(message, Logged):
        ear.logged(message.place, message.text)
    elif isinstance(message, Waits):
        ear.waits(message.name)


@contextlib.contextmanager
def _alarm(after_s: float, ring: Callable[[], None]) -> Iterator[None]:
    """Ring after some time, unless this has ended before."""
    timer = threading.Timer(after_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
