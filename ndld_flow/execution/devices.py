"""Devices of measuring steps, which one step of all users of a machine holds at a time.

A GPU is known by its UUID, and each CPU by its number, so that measurements on overlapping sets of CPUs exclude each
other and those on disjoint sets do not. Each has a lock in a folder that all users of the machine share, and one in the
store: containers see neither each other's /run/lock nor /tmp, so those of one host exclude each other only if they
share the store, or a folder that NDLD_FLOW_DEVICE_LOCKS names. There is no order among the processes that wait.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.machine.gpu_state import visible_gpus
from ndld_flow.machine.hardware import UNKNOWN, usable_cpus
from ndld_flow.machine.host import Check, ranges
from ndld_flow.processes.worker import is_one_process
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.store.digest import digest_json
from ndld_flow.store.locks import WAITS, FileLock, Lock, LockNote, describe_holder, open_lock, read_note, take
from ndld_flow.store.store import Store

FOLDER_VARIABLE = "NDLD_FLOW_DEVICE_LOCKS"
"""The environment variable that names another folder for the locks that all users share."""
_SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - used only if it is sticky and owned by root
_STICKY_FOR_ALL = 0o1777
_FOR_ALL = 0o666
_PREFIX = "ndld_flow-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_EVERY_S = 0.1
_REMIND_EVERY_S = 300.0
"""Seconds between repeated reports: CI systems end a job that prints nothing for 10 minutes."""


@dataclass(frozen=True)
class Claim:
    """A step that needs a device."""

    who: str
    """`step speed of ppocr-det`."""
    report: Callable[[str], None]
    """Called with the reason for waiting: at once, when it changes, and every 5 minutes."""


@dataclass
class _DeviceLock:
    """One lock of a device."""

    device: str
    """`cpu 3`."""
    path: Path
    lock: Lock


@dataclass
class DeviceHold:
    """A device that a step measures, with everything that may have let others measure at the same time."""

    device: str
    _faults: list[str] = field(default_factory=list)
    _locks: list[_DeviceLock] = field(default_factory=list)

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the reasons why others may have measured at the same time, so far."""
        removed = [
            f"{held.path} was removed while it measured, so others may have measured at the same time"
            for held in self._locks
            if isinstance(held.lock, FileLock) and not held.lock.is_at_its_path()
        ]
        return (*self._faults, *removed)

    def fail(self, fault: str) -> None:
        """Add a reason."""
        self._faults.append(fault)

    def take(self, lock: _DeviceLock, note: LockNote, report: Callable[[str], None]) -> None:
        """Take a lock, when it is free. Raises OSError."""
        if not take(lock.lock):
            _wait(lock, note, report)
        self._locks.append(lock)
        if isinstance(lock.lock, FileLock):
            lock.lock.write_note(note)

    def release(self) -> None:
        """Release the device."""
        for held in self._locks:
            held.lock.release()


@contextlib.contextmanager
def holding(device: str, store: Store, claim: Claim) -> Iterator[DeviceHold]:
    """Hold a device, such as `cpu` or `gpu-0`, when it is free; that of a killed process is free at once.

    A folder may not support locks, or not be writable: the step then measures all the same, and the yielded value has
    the reasons.
    """
    run_pid = os.getpid() if is_one_process() else os.getppid()
    note = LockNote.of_this_process(f"{claim.who} on {_describe_devices(device)}", run_pid)
    hold = DeviceHold(device)
    try:
        for lock in _open_locks(store, hold) if device else ():
            try:
                hold.take(lock, note, claim.report)
            except OSError as error:
                hold.fail(f"{lock.device} cannot be locked by {lock.path}: {error}")
        yield hold
    finally:
        hold.release()


def _wait(lock: _DeviceLock, own: LockNote, report: Callable[[str], None]) -> None:
    """Wait until a lock is held. Raises OSError."""
    began_s = time.monotonic()
    reported, reported_s = "", 0.0
    while not take(lock.lock):
        now_s = time.monotonic()
        holder = describe_holder(lock.path)
        if holder != reported or now_s - reported_s >= _REMIND_EVERY_S:
            reported, reported_s = holder, now_s
            so_far = f", for {seconds(now_s - began_s)} so far" if now_s - began_s >= _REMIND_EVERY_S else ""
            # Steps of one run take turns, which needs no line in the log.
            note = read_note(lock.path)
            same_run = note is not None and (note.run_pid, note.host) == (own.run_pid, own.host)
            start = "its turn comes after " if same_run else WAITS
            report(f"{start}{lock.device}, held by {holder}{so_far}")
        time.sleep(_POLL_EVERY_S)


def _open_locks(store: Store, hold: DeviceHold) -> Iterator[_DeviceLock]:
    """Yield the locks of a device in the order in which all processes take them, so that no two wait for each other."""
    folder = find_shared_folder()
    if folder is None:
        hold.fail(
            "this machine has no folder for locks that is shared by all its users: set "
            f"{FOLDER_VARIABLE} to a folder that all users can write"
        )
        folder = Path(tempfile.gettempdir())
    names = {f"{_PREFIX}{name_machine()}-{_file_name(name)}": name for name in name_devices(hold.device)}
    for file, name in names.items():
        path = folder / f"{file}.lock"
        yield _DeviceLock(_describe_lock(hold.device, name), path, open_lock(path, _FOR_ALL))
    for file, name in names.items():
        yield _DeviceLock(_describe_lock(hold.device, name), store.locks.path(file), store.locks.open(file))


def describe_holders() -> Check:
    """Return who holds the devices of this machine."""
    name, folder = "device locks", find_shared_folder()
    if folder is None:
        advice = f"set {FOLDER_VARIABLE} to a folder that all users can write"
        return Check(name=name, state="absent", found="no folder that is shared by all users", advice=advice)
    held = []
    for path in sorted(folder.glob(f"{_PREFIX}{name_machine()}-*.lock")):
        with contextlib.suppress(OSError):
            lock = open_lock(path, _FOR_ALL)
            if take(lock):
                lock.release()
            else:
                held.append(describe_holder(path))
    return Check(name=name, state="ok", found="; ".join(dict.fromkeys(held)) or f"nothing measures (locks in {folder})")


def find_shared_folder() -> Path | None:
    """Return the folder of the locks that all users of this machine share.

    By default a sticky folder owned by root: nobody can replace another user's files in it.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else next(filter(_is_sticky, _SHARED_FOLDERS), None)


def _is_sticky(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == 0 and status.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL


def name_machine() -> str:
    """Return a name that all containers of a host share, unlike their host names."""
    try:
        return digest_json(_BOOT_ID.read_text(encoding="ascii").strip())[:16]
    except OSError:
        return _file_name(platform.node())


def name_devices(device: str) -> tuple[str, ...]:
    """Return the names of all devices that a step needs at once."""
    if device == "cpu":
        return tuple(f"cpu-{cpu}" for cpu in usable_cpus())
    if (numbered := re.fullmatch(r"gpu-(\d+)", device)) is None:
        return (device,)
    number, seen = int(numbered[1]), visible_gpus()
    # Other processes may number GPUs differently.
    uuid = seen[number].uuid if number < len(seen) else UNKNOWN
    return (f"gpu-{number}" if uuid == UNKNOWN else uuid,)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def _describe_lock(device: str, name: str) -> str:
    """Return `cpu 3` or `gpu 0`, given the device and the name of its lock."""
    return name.replace("-", " ") if device == "cpu" else _describe_devices(device)


def _describe_devices(device: str) -> str:
    """Return `cpu 0-3,8` or `gpu 0`."""
    if device != "cpu":
        return re.sub(r"^gpu-(\d+)$", r"gpu \1", device)
    return f"cpu {ranges(usable_cpus())}"


_NOTE = "at-work.json"
_OBSERVE_EVERY_S = 1.0
_MOST_LISTED = 20


class _Activity(Record):
    """The announcement of a running step, in its build folder."""

    host: str
    pid: int
    what: str
    """`convert_fp16 half of ppocr`."""
    since_s: float
    """Its start, by the monotonic clock: all processes of a machine share it, and none can set it."""


def announce(steps: Sequence[RecipeStep], recipe: str, folder: Path) -> None:
    """Announce running steps while they hold `folder` of the store: until they end or are killed."""
    names = " and ".join(f"`{step.name}`" for step in steps)
    what = f"{steps[0].type.name} {names}{f' of {recipe}' if recipe else ''}"
    mine = _Activity(host=platform.node(), pid=os.getpid(), what=what, since_s=time.monotonic())
    (folder / _NOTE).write_text(mine.to_json(), encoding="utf-8")


@dataclass
class _Observed:
    """A step of another process, as far as it was observed."""

    work: _Activity
    last_s: float


class LoadMonitor:
    """Observes other running steps about once a second during a measurement in another process or thread."""

    def __init__(self, store: Store, own: Path) -> None:
        """Start observing. `own`: the folder of our own announcement."""
        self._store = store
        self._own = own
        self._began_s = time.monotonic()
        self._observed: dict[str, _Observed] = {}
        self._over = threading.Event()
        self._observe()
        self._thread = threading.Thread(target=self._observe_until_end, daemon=True)
        self._thread.start()

    def end(self) -> tuple[str, ...]:
        """Return descriptions of the concurrent steps: ``convert_fp16 `half` of ppocr (pid 812), for 3 s of 12 s``."""
        self._over.set()
        self._thread.join()
        self._observe()
        whole_s = time.monotonic() - self._began_s
        together_s: dict[str, float] = {}
        for observed in self._observed.values():
            who = f"{short_name(observed.work.what)} (pid {observed.work.pid})"
            share_s = observed.last_s - max(observed.work.since_s, self._began_s)
            together_s[who] = together_s.get(who, 0.0) + max(share_s, 0.0)
        listed = [
            f"{who}, for {_format_span(share_s)} of {_format_span(whole_s)}" for who, share_s in together_s.items()
        ]
        return (
            *listed[:_MOST_LISTED],
            *([f"and {len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []),
        )

    def _observe_until_end(self) -> None:
        while not self._over.wait(_OBSERVE_EVERY_S):
            self._observe()

    def _observe(self) -> None:
        """Observe running steps once. A store that temporarily cannot be read does not end a measurement."""
        with contextlib.suppress(OSError):
            folders = self._store.root / "building"
            others = {path.parent.name: path for path in folders.glob(f"*/{_NOTE}") if path.parent != self._own}
            alive = self._store.locks.leased("building") if others else set()  # excludes killed processes
            now_s = time.monotonic()
            for name, path in others.items():
                if name in alive and (work := self._read(name, path)):
                    self._observed[name] = _Observed(work, now_s)

    def _read(self, name: str, path: Path) -> _Activity | None:
        """Return another step's announcement; None if it runs on another machine, or has just ended."""
        if name in self._observed:
            return self._observed[name].work
        try:
            work = _Activity.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return work if work.host == platform.node() else None


def _format_span(span_s: float) -> str:
    return f"{span_s:.0f} s" if span_s >= 1 else "less than 1 s"
