"""Planned faults of a process's writes, in a file that `faults.c` reads."""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPEN, WRITE, SYNC, NAME, REMOVE, MODE = 1, 2, 4, 8, 16, 32
"""Kinds of calls, as `faults.c` numbers them."""
FAIL_ONCE, FAIL_ON, SHORT_ONCE, SHORT_THEN_FAIL, CUT_TO_NOTHING, CUT_TO_HALF = range(6)
"""Manners of going wrong: this call alone, this call and all that follow; half of it written, and then all fails or
nothing; the power is cut, and of files that were written and not synced nothing is left, or half.
"""
_PLAN_BYTES = 8 * (7 + 64) + 4096 * (8 + 1024)
_ADDS = OPEN | WRITE | SYNC | NAME
_ALL = _ADDS | REMOVE | MODE


@dataclass(frozen=True)
class Fault:
    """A way in which a call that writes can go wrong."""

    attack: str
    """Its name in the table of attacks."""
    number: int = 0
    """The errno."""
    kinds: int = _ALL
    """Calls to which this happens on real systems: a full disk refuses no removal."""
    manner: int = FAIL_ONCE

    def __str__(self) -> str:
        manner = ("once", "from then on", "", "and then fails", "to nothing", "to half")[self.manner]
        return f"{self.attack} {manner} ({errno.errorcode.get(self.number, 'no error')})"


COUNT = Fault("none")


def refusals(manner: int) -> tuple[Fault, ...]:
    """Every error that a disk gives."""
    return (
        Fault("write fails: no space", errno.ENOSPC, _ADDS, manner),
        Fault("write fails: quota", errno.EDQUOT, _ADDS, manner),
        Fault("write fails: read-only", errno.EROFS, _ALL, manner),
        Fault("write fails: permission", errno.EACCES, OPEN | NAME | REMOVE, manner),
        Fault("write fails: I/O error", errno.EIO, _ALL, manner),
    )


NO_SPACE_ONCE = refusals(FAIL_ONCE)[0]
NO_SPACE = refusals(FAIL_ON)[0]
SHORT_WRITES = (
    Fault("short write", 0, WRITE, SHORT_ONCE),
    Fault("short write", errno.ENOSPC, WRITE, SHORT_THEN_FAIL),
)
POWER_CUTS = (
    Fault("power cut at a write", 0, _ALL, CUT_TO_NOTHING),
    Fault("power cut at a write", 0, _ALL, CUT_TO_HALF),
)


@dataclass(frozen=True)
class FaultPlan:
    """A fault at the `at`-th of the calls that it can happen to, below one folder; none with 0."""

    folder: Path
    fault: Fault = COUNT
    at: int = 0

    def write(self, aside: Path) -> dict[str, str]:
        """Write the plan to a folder; return the environment that enables it in a process."""
        plan, log = aside / "plan", aside / "calls"
        with plan.open("wb") as file:
            file.write(struct.pack("4q", self.at, self.fault.kinds, self.fault.number, self.fault.manner))
            file.truncate(_PLAN_BYTES)
        log.write_bytes(b"")
        return {"FAULT_ROOT": str(self.folder), "FAULT_PLAN": str(plan), "FAULT_LOG": str(log), "FAULT_AT_ONCE": "1"}


def read_struck(aside: Path) -> int:
    """Return the number of failed calls."""
    with (aside / "plan").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        return int(struct.unpack_from("6q", plan)[5])


def read_calls(aside: Path) -> Iterator[tuple[int, str]]:
    """The kind and the path of each call that was counted, in their order."""
    for line in (aside / "calls").read_text(errors="replace").splitlines():
        kind, _, path = line.partition(" ")
        yield int(kind), path
