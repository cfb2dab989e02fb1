"""Devices of measuring steps: exclusive locks between all users of a machine, and the concurrent load of other steps.

A GPU has one lock; the CPU has one lock for each core that this process may use, so that measurements on overlapping
sets of cores exclude each other and those on disjoint sets do not. All processes take locks in the same order, so that
they cannot deadlock.

Each lock is a file in two folders: one that all users of the machine share, and one in the store. Containers see
neither each other's /run/lock nor /tmp; containers of one host exclude each other only if they share the store, or a
folder that NDLD_FLOW_DEVICE_LOCKS names."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.text import short_name
from ndld_flow.processes.watchdog import is_one_process
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.runner.disk import name_user
from ndld_flow.runner.events import WAITS
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import create_file, make_folder, open_new_file
from ndld_flow.store.lock_folders import is_running, name_process
from ndld_flow.store.locks import Lock, Locks
from ndld_flow.store.store import Store

FOLDER_VARIABLE = "NDLD_FLOW_DEVICE_LOCKS"
"""The environment variable that names another folder for the locks that all users share."""
_SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - used only if it is sticky and owned by root
_STICKY_FOR_ALL = 0o1777
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_CPU_LOCKS = 64
"""Maximum number of locks. On machines with more CPUs, adjacent CPUs share a lock: each takes two open files."""
_RETRY_EVERY_S = 1.0
_POLL_EVERY_S = 0.1
_REMIND_EVERY_S = 300.0
"""Seconds between repeated reports: CI systems end a job that prints nothing for 10 minutes."""
_LONGEST_NOTE = 10_000


class _Holder(Record):
    """A note next to a lock, for the processes that wait."""

    process: str
    pid: int
    run_pid: int
    """Pid of the process that started the worker, or that computes the step itself."""
    who: str
    device: str
    since: datetime


@dataclass(frozen=True)
class Claim:
    """A step that needs a device."""

    who: str
    """`step speed of ppocr-det`."""
    report: Callable[[str], None]
    """Called with the reason for waiting: at once, when it changes, and every 5 minutes."""


@contextlib.contextmanager
def holding(device: str, store: Store, claim: Claim) -> Iterator[list[str]]:
    """Hold the lock of a device, such as `cpu` or `gpu-0`; the system releases the lock of a killed process at once.

    Yields warnings for the step's log: a folder may not support locks, or not be writable.
    """
    faults: list[str] = []
    with contextlib.ExitStack() as held:
        for place in _lock_files(device, store, faults) if device else ():
            held.enter_context(_holding_lock(place, device, claim, faults))
        yield faults


def _lock_files(device: str, store: Store, faults: list[str]) -> Iterator[Path]:
    """Yield lock files, in the order in which all processes take them."""
    folder, prefix = _find_shared_folder(), "ndld_flow-"
    if folder is None:
        user = os.environ.get("USER") or os.environ.get("USERNAME") or "anyone"
        folder, prefix = Path(tempfile.gettempdir()), f"ndld_flow-{_file_name(user)}-"
        faults.append(
            "this machine has no folder for locks that is shared by all its users, so others may measure on the "
            f"{device} at the same time. Set {FOLDER_VARIABLE} to a folder that all users can write"
        )
    names = name_locks(device)
    yield from (folder / f"{prefix}{name}.lock" for name in names)
    make_folder(store.locks.folder)
    yield from (store.locks.folder / f"device-{_name_machine()}-{name}.lock" for name in names)


def _find_shared_folder() -> Path | None:
    """Return the folder whose locks all users of this machine see.

    By default a sticky folder owned by root: nobody can replace another user's files in it.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    for folder in _SHARED_FOLDERS:
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_uid == 0 and status.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL:
                return folder
    return None


def _name_machine() -> str:
    """Return a name that all containers of a host share, unlike their host names."""
    try:
        return digest_json(_BOOT_ID.read_text(encoding="ascii").strip())[:16]
    except OSError:
        return _file_name(platform.node())


def name_locks(device: str) -> tuple[str, ...]:
    """Return the names of a device's locks, in the order in which they are taken."""
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
    """Return the UUID of a GPU, as other processes may number GPUs differently; its number if it has no UUID."""
    from ndld_flow.measure.gpu_clocks import name_for_nvml

    name = name_for_nvml(number)
    cards = (path.read_text(errors="replace") for path in sorted(_NVIDIA_GPUS.glob("*/information")))
    matches = [re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", card, re.MULTILINE) for card in cards]
    ids = [match[1] if match else "" for match in matches]
    if name.isdecimal():
        return (ids[int(name)] if int(name) < len(ids) else "") or f"gpu-{name}"
    return next((uuid for uuid in ids if uuid.startswith(name)), name)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


@contextlib.contextmanager
def _holding_lock(path: Path, device: str, claim: Claim, faults: list[str]) -> Iterator[None]:
    in_store = path.name.startswith("device-") or sys.platform == "win32"
    try:
        lock = Locks(path.parent).open(path.stem) if in_store else _SharedLock(path)
        _take(lock, path, device, claim.report)
    except (OSError, NotImplementedError) as error:
        faults.append(f"{path} is not locked, so others may measure on the {device} at the same time: {error}")
        yield
        return
    holder = _Holder(
        process=name_process(),
        pid=os.getpid(),
        run_pid=_find_run_pid(),
        who=claim.who,
        device=_describe_device(device),
        since=datetime.now(UTC),
    )
    try:
        with _naming_holder(path, holder):
            yield
    finally:
        lock.release()


class _SharedLock:
    """A lock in a folder that anybody can write.

    No link is followed, a pipe does not block, and nothing is written: a file can be locked when opened for reading.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, timeout: float) -> None:
        """Take the lock; wait as many seconds as `timeout`. Raises TimeoutError, and OSError for no regular file."""
        end = time.monotonic() + timeout
        while not self._try():
            if time.monotonic() >= end:
                raise TimeoutError(f"{self._path} is held")
            time.sleep(_POLL_EVERY_S)

    def release(self) -> None:
        os.close(self._descriptor)

    def _try(self) -> bool:
        import fcntl

        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(self._path.lstat(), os.fstat(descriptor)):
                self._descriptor = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass  # held, or removed in the meantime
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return False

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags)
        except FileNotFoundError:
            create_file(self._path, 0o666)
            descriptor = os.open(self._path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path} is not a regular file; its owner must remove it")
        return descriptor


def _take(lock: Lock, path: Path, device: str, report: Callable[[str], None]) -> None:
    reason_before, reported_at_s = "", 0.0
    while True:
        try:
            lock.acquire(timeout=_RETRY_EVERY_S if reason_before else 0)
        except TimeoutError:
            reason = _read_holder(path) or reason_before or f"{WAITS}the {device}, held by another measurement"
            if reason != reason_before or time.monotonic() - reported_at_s >= _REMIND_EVERY_S:
                reported_at_s = time.monotonic()
                report(reason)
            reason_before = reason
        else:
            return


@contextlib.contextmanager
def _naming_holder(path: Path, holder: _Holder) -> Iterator[None]:
    """Write the holder next to a lock, in a file per user: nobody can replace another user's file."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    note = path.with_name(f"{path.stem}.{user}.holder")
    with contextlib.suppress(OSError):
        note.unlink(missing_ok=True)
        with os.fdopen(open_new_file(note, 0o644), "w", encoding="utf-8") as file:
            file.write(holder.to_json())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)


def _find_run_pid() -> int:
    return os.getpid() if is_one_process() else os.getppid()


def _read_holder(path: Path) -> str:
    """Return `waits for cpu 0-1, held by step speed of ppocr-det (user ann, pid 123) since 10:42:07`.

    It is empty without a note of a running process. Steps of one run take turns, which needs no line in the log.
    """
    notes = (_read_note(note) for note in path.parent.glob(f"{path.stem}.*.holder"))
    holders = [(holder.since, user, holder) for holder, user in filter(None, notes)]
    if not holders:
        return ""
    since, user, holder = max(holders, key=lambda each: each[0])
    begin = "its turn comes after " if holder.run_pid == _find_run_pid() else WAITS
    return (
        f"{begin}{short_name(holder.device)}, held by {short_name(holder.who)} (user {user}, pid {holder.pid}) "
        f"since {since.astimezone():%H:%M:%S}"
    )


def _read_note(note: Path) -> tuple[_Holder, str] | None:
    """Return a holder that is running, with the name of the user who wrote the note."""
    try:
        descriptor = os.open(note, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            text = file.read(_LONGEST_NOTE) if stat.S_ISREG(status.st_mode) else b""
        holder = _Holder.model_validate_json(text)
    except (OSError, ValidationError):
        return None
    return (holder, name_user(status.st_uid)) if is_running(holder.process) else None


def _describe_device(device: str) -> str:
    """Return `cpu 0-3,8` or `gpu 0`."""
    if device != "cpu":
        return re.sub(r"^gpu-(\d+)$", r"gpu \1", device)
    ranges: list[list[int]] = []
    for cpu in _own_cpus():
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    return "cpu " + ",".join(f"{some[0]}-{some[-1]}" if len(some) > 1 else f"{some[0]}" for some in ranges)


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
