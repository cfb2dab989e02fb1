"""The worker's side of a worker process: reports progress and ends with the process that started it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ndld_flow.processes.watchdog import ORPHANED

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
