"""Keeps a process and all that it starts together: when it ends, or who started it does, nothing of it is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ORPHANED = 3
"""Exit code of a process whose standard input ended: who started it is gone, or wants no more of it."""
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_ENOUGH = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def keep_together() -> None:
    """Call this first, before there are threads: what follows is done by a child of this process, which keeps watch.

    When standard input ends, the child does, or this process is told to end, everything that the child has started is
    killed, sessions of its own or not, and this process ends: with `ORPHANED`, the child's code, or 128 and the number
    of the signal that killed it. Only Linux lets a process be kept so; elsewhere nothing happens here.
    """
    if not sys.platform.startswith("linux"):
        return
    if os.getpgid(0) != os.getpid():
        os.setsid()
    _control(_SET_SUBREAPER, 1)  # what the child's children leave behind becomes ours
    keeper, child = os.getpid(), os.fork()
    if child:
        _keep(child)
    end_with_parent(keeper)


def end_with_parent(parent: int) -> None:
    """When that process, which has just forked this one, is killed, so is this. Only Linux can; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    _control(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def _control(option: int, value: int) -> None:
    """Linux' prctl."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _keep(child: int) -> NoReturn:
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENOUGH):
        signal.signal(number, lambda *_: None)
    code = _wait(child, awake)
    _end_children()
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int, awake: int) -> int:
    """Until the child has ended, or must; the code to end with."""
    watch = select.poll()
    watch.register(0, select.POLLRDHUP)  # and its end, which is always told
    watch.register(awake, select.POLLIN)
    while True:
        code = _reap(child)
        if code is not None:
            return code
        for descriptor, _ in watch.poll():
            if descriptor == 0 or _ENOUGH & set(os.read(awake, 64)):
                return ORPHANED


def _reap(child: int) -> int | None:
    """Bury who has ended; the child's code, if it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                return os.waitstatus_to_exitcode(status)
            if not ended:
                return None
    return ORPHANED


def _end_children() -> None:
    """Kill our children until there are none: what they leave behind becomes ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> Iterator[int]:
    me = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(state[1]) == me:
                    yield int(entry.name)
