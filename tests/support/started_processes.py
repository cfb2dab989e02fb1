"""Processes that a test started and left running: the next test would meet their locks, files and load."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver, resource_tracker

from ndld_flow.models import changed_model
from tests.support.process_runs import ProcessRun

SERVERS: set[int] = set()
"""Processes that a test starts for those after it as well; their fixtures end them."""
POOLS: list[Callable[[], Iterable[int]]] = []
"""Functions that return the processes of pools that serve several tests; their fixtures end them."""


@contextlib.contextmanager
def ending_processes() -> Iterator[None]:
    """Kill what the block starts and leaves running, except servers and pools."""
    before = _children()
    try:
        yield
    finally:
        for run in ProcessRun.started:
            run.send_signal(signal.SIGKILL)
        ProcessRun.started.clear()
        kept = SERVERS.union(*(pool() for pool in POOLS))
        for process in _children() - before - kept - _servers_of_python():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _children() -> set[int]:
    """Return the children of this process; none where the system has no list of them.

    Each of thousands of tests asks twice: `Path.glob` and `read_text` took three times as long.
    """
    found: set[int] = set()
    for task in os.listdir("/proc/self/task") if sys.platform == "linux" else ():  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children", "rb") as children:  # noqa: PTH123
            found.update(map(int, children.read().split()))  # an error: the thread has ended
    return found


def _servers_of_python() -> set[int]:
    """Return the processes that serve the whole of this one."""
    owners = (
        (changed_model, "LOADER", "pid"),
        (forkserver, "_forkserver", "_forkserver_pid"),
        (resource_tracker, "_resource_tracker", "_pid"),
    )
    return {getattr(getattr(module, owner), name) or 0 for module, owner, name in owners}
