"""Hold a device alone: against all measuring steps of this machine that share the store, or the user.

A GPU is one lock, wherever it is seen from; the CPU is one lock for each that this process may use, so that sets which
overlap exclude each other and others do not. Locks are taken in one order by all: none waits in a circle.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.artifacts.lock_folders import is_alive
from ndld_flow.artifacts.locks import Lock, Locks
from ndld_flow.artifacts.store import Store
from ndld_flow.plain_text import short_name
from ndld_flow.records.base import Record

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_MOST_CPU_LOCKS = 64
"""On machines with more CPUs, neighbours share a lock: each takes two open files."""
_ASK_AGAIN_S = 1.0


class _Holder(Record):
    """Stands beside a lock, for those who wait."""

    pid: int
    who: str
    device: str


@dataclass(frozen=True)
class Claim:
    """Who wants a device, and where that is told."""

    who: str
    """`step speed of ppocr-det`."""
    tell: Callable[[str], None]
    """Hears what is waited for."""


@contextlib.contextmanager
def holding(device: str, store: Store, claim: Claim) -> Iterator[list[str]]:
    """Hold a device, such as `cpu` or `gpu-0`, alone; a killed holder's is free at once.

    Gives what is wrong with it, for the step's log: a folder may keep no locks, or let us write none.
    """
    faults: list[str] = []
    with contextlib.ExitStack() as held:
        for place in _places(device, store) if device else ():
            held.enter_context(_holding_one(place, device, claim, faults))
        yield faults


def _places(device: str, store: Store) -> list[tuple[Path, int]]:
    """Lock files in their order, each with its permissions: what is this user's first, then what all users share."""
    user = os.environ.get("USER") or os.environ.get("USERNAME") or "anyone"
    shared = store.root / "locks"
    shared.mkdir(parents=True, exist_ok=True)
    may = shared.stat().st_mode & 0o666  # who may write there may lock there
    names = name_locks(device)
    return [
        *((Path(tempfile.gettempdir()) / f"ndld_flow-{_file_name(user)}-{name}.lock", 0o600) for name in names),
        *((shared / f"device-{_file_name(platform.node())}-{name}.lock", may) for name in names),
    ]


def name_locks(device: str) -> tuple[str, ...]:
    """What must be held for a device, in the order in which it is taken."""
    if device == "cpu":
        width = -(-(os.cpu_count() or 1) // _MOST_CPU_LOCKS)
        return tuple(f"cpu-{group}" for group in sorted({cpu // width for cpu in _own_cpus()}))
    number = re.fullmatch(r"gpu-(\d+)", device)
    return (_file_name(_name_gpu(int(number[1])) if number else device),)


def _own_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _name_gpu(number: int) -> str:
    """A GPU by its UUID, as others may see and count other ones; by its number where no UUID is told."""
    from ndld_flow.backends.measuring.gpu_names import name_for_nvml

    name = name_for_nvml(number)
    cards = (path.read_text(errors="replace") for path in sorted(_NVIDIA_GPUS.glob("*/information")))
    told = [re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", card, re.MULTILINE) for card in cards]
    ids = [found[1] if found else "" for found in told]
    if name.isdecimal():
        return (ids[int(name)] if int(name) < len(ids) else "") or f"gpu-{name}"
    return next((found for found in ids if found.startswith(name)), name)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


@contextlib.contextmanager
def _holding_one(place: tuple[Path, int], device: str, claim: Claim, faults: list[str]) -> Iterator[None]:
    path, mode = place
    note = path.with_suffix(".holder")
    try:
        lock = Locks(path.parent).open(path.stem, mode)
        _take(lock, note, device, claim.tell)
    except (OSError, NotImplementedError) as error:
        faults.append(f"{path.name} is not locked, so others may measure on the {device} at the same time: {error}")
        yield
        return
    try:
        with _naming_holder(note, mode, _Holder(pid=os.getpid(), who=claim.who, device=_say_device(device))):
            yield
    finally:
        lock.release()


def _take(lock: Lock, note: Path, device: str, tell: Callable[[str], None]) -> None:
    told = ""
    while True:
        try:
            lock.acquire(timeout=_ASK_AGAIN_S if told else 0)
        except TimeoutError:
            said = _read_holder(note) or told or f"another measurement holds the {device}"
            if said != told:
                tell(f"waits: {said}")
            told = said
        else:
            return


@contextlib.contextmanager
def _naming_holder(note: Path, mode: int, holder: _Holder) -> Iterator[None]:
    """Say beside a lock who holds it; where that cannot be written, nobody is told."""
    with contextlib.suppress(OSError):
        note.unlink(missing_ok=True)
        with note.open("x", encoding="utf-8") as file:  # the folder may be everybody's: no link there is followed
            file.write(holder.to_json())
        note.chmod(mode)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)


def _read_holder(note: Path) -> str:
    """`step speed of ppocr-det (pid 123) holds cpu 0-1`; empty where nobody says so who lives."""
    try:
        holder = _Holder.model_validate_json(note.read_bytes())
    except (OSError, ValidationError):
        return ""
    if not is_alive(holder.pid):
        return ""
    return f"{short_name(holder.who)} (pid {holder.pid}) holds {short_name(holder.device)}"


def _say_device(device: str) -> str:
    """`cpu 0-3,8`, `gpu 0`."""
    if device != "cpu":
        return re.sub(r"^gpu-(\d+)$", r"gpu \1", device)
    ranges: list[list[int]] = []
    for cpu in _own_cpus():
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    return "cpu " + ",".join(f"{some[0]}-{some[-1]}" if len(some) > 1 else f"{some[0]}" for some in ranges)
