"""A watchdog that ends a process and all its descendants with its parent, and the switch that keeps all work in one
process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ORPHANED = 3
"""Exit code of a process whose standard input ended: its parent has died, or no longer needs it."""
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_END_SIGNALS = {getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)}
"""Windows, which imports this module too, has no SIGHUP."""


def run_under_watchdog() -> None:
    """Fork: the child returns and works, this process becomes its watchdog. Call it first, before there are threads.

    When standard input ends, the child ends, or this process gets a terminating signal, all descendants of the child
    are killed, also those in other sessions, and this process exits with `ORPHANED`, the child's code, or 128 plus the
    number of the signal that killed it. Does nothing on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return
    if os.getpgid(0) != os.getpid():
        os.setsid()
    _control(_SET_SUBREAPER, 1)  # orphaned descendants become our children
    watchdog, child = os.getpid(), os.fork()
    if child:
        _watch_over(child)
    end_with_parent(watchdog)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. Does nothing on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def _control(option: int, value: int) -> None:
    """Call Linux's prctl."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _watch_over(child: int) -> NoReturn:
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_END_SIGNALS):
        signal.signal(number, lambda *_: None)
    code = _wait(child, awake)
    _end_children()
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int, awake: int) -> int:
    """Wait until the child has ended, or has to; return the exit code."""
    watch = select.poll()
    watch.register(0, select.POLLRDHUP)  # POLLHUP is always reported
    watch.register(awake, select.POLLIN)
    while True:
        code = _reap(child)
        if code is not None:
            return code
        for descriptor, _ in watch.poll():
            if descriptor == 0 or _END_SIGNALS & set(os.read(awake, 64)):
                return ORPHANED


def _reap(child: int) -> int | None:
    """Wait for ended processes; return the child's code if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                return os.waitstatus_to_exitcode(status)
            if not ended:
                return None
    return ORPHANED


def _end_children() -> None:
    """Kill our children until there are none: their orphans become our children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    own_pid = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(state[1]) == own_pid:
                    yield int(entry.name)


IN_PROCESS = "NDLD_FLOW_IN_PROCESS"
"""Environment variable; any value but `0` and the empty string turns it on."""


def is_one_process() -> bool:
    """Return whether all work stays in this process."""
    return os.environ.get(IN_PROCESS, "0") not in ("", "0")
