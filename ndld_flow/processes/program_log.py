"""What a program is given of our environment, and where its lines go."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT")
"""Of our environment, what a program needs to run at all."""
_MOST_LINES = 10_000
"""A log is kept with the record of the run."""


def little_environment(scratch: Path, passed: Iterable[str] = ()) -> dict[str, str]:
    """Of our environment what any program needs, and the variables in `passed`; temporary files go to `scratch`."""
    ours = {name: os.environ[name] for name in (*_PASSED, *passed) if name in os.environ}
    return {**ours, "TMPDIR": str(scratch)}


def log_to(log: logging.Logger, progress: Callable[[int, int, str], None]) -> Callable[[str], None]:
    """Writes lines to the step's log, up to a limit, and shows the last one."""
    count = 0

    def hear(line: str) -> None:
        nonlocal count
        count += 1
        if count <= _MOST_LINES:
            log.info("%s", line)
        elif count == _MOST_LINES + 1:
            log.info("further lines are not kept")
        progress(0, 0, line)

    return hear
