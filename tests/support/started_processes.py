"""Processes that a test started and left running: the next test would meet their locks, files and load."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

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
    """Return the children of this process; none where the system has no list of them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(process) for children in lists for process in _read(children).split()}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""


def _servers_of_python() -> set[int]:
    """Return the processes that serve the whole of this one."""
    owners = (
        (changed_model, "LOADER", "pid"),
        (forkserver, "_forkserver", "_forkserver_pid"),
        (resource_tracker, "_resource_tracker", "_pid"),
    )
    return {getattr(getattr(module, owner), name) or 0 for module, owner, name in owners}
