"""The worker's side of a worker process: reports progress and ends with the process that started it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

ReportProgress = Callable[[int, int, str], None]

_REPORT_EVERY_S = 0.1


def start_worker() -> ReportProgress:
    """Prepare this process: it ends when its standard input does, and libraries print to standard error.

    Call this first. The returned function writes lines `DONE TOTAL WHAT` to standard output, at a limited rate.
    """

    watch_input()
    output = claim_output()
    return throttled(lambda done, total, what: os.write(output, f"{done} {total} {what}\n".encode()))


def watch_input() -> None:
    """End this process when its standard input does: the process that started it has ended."""

    def end_with_stdin() -> None:
        while os.read(0, 64):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=end_with_stdin, daemon=True).start()


def claim_output() -> int:
    """Return a descriptor of standard output; from now on libraries print to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def claim_input() -> int:
    """Return a descriptor of standard input, which is empty for the programs that are started from now on."""
    source = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return source


def exit_worker() -> None:
    """Exit at once, after the answer was written: unloading drivers takes time and may crash."""
    os._exit(0)


def throttled(write: Callable[[int, int, str], object]) -> ReportProgress:
    """Limit progress reports to ten a second, except at a new activity: `what` up to the word `pass`."""
    last, activity = 0.0, ""

    def report(done: int, total: int, what: str) -> None:
        nonlocal last, activity
        now, current = time.monotonic(), what.partition("pass ")[0]
        if current == activity and now - last < _REPORT_EVERY_S:
            return
        last, activity = now, current
        write(done, total, what)

    return report


_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process in bytes; 0 if it is unknown."""
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


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
