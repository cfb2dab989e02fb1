"""CPU time of a process and its descendants, which shows whether they work."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROCESSES = Path("/proc")


def read_cpu_time(pid: int) -> float | None:
    """Return the CPU seconds of a process, of any user, and of its descendants; None if the system does not show it."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = path.read_bytes()
            fields = stat[stat.rfind(b")") + 1 :].split()
            member = int(path.parent.name)
            times[member] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append(member)
    if pid not in times:
        return None
    family = [pid]
    for member in family:
        family += children.get(member, ())
    return sum(times[member] for member in family)
