"""Locks between the processes that share a store: one for each key, and leases that other processes can query.

A lock is one of `flock`. filelock, which Windows and file systems without `flock` need, is imported only for these: it
imports asyncio and sqlite3, which take longer than a run that has nothing to do.

A lease has a file `<lease>.uses` that lists the keys and digests its holder uses, so that `gc` can run concurrently. A
run lists a key or digest before it looks for it; `gc` reads the lists and removes unlisted results while it holds the
lock `uses`, which listing takes, too. So either the run's key is listed in time, or the run finds no result and
computes it. While `gc` works, the lists of runs that end stay: it may have read the folders of runs before they were
written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pydantic import AwareDatetime, Field, ValidationError

from ndld_flow.base.text import short_name
from ndld_flow.base.users import name_me
from ndld_flow.records.document import Record
from ndld_flow.store.files import create_file, make_folder, share, shared_mode

UNKNOWN_HOLDER = "another process"
WAITS = "waits for "
"""Prefix of a message about a wait for another process, which is printed in every mode."""
_POLL_EVERY_S = 0.05
_LONGEST_NOTE = 4096


class Lock(Protocol):
    """The protocol of filelock's locks and ours."""

    def acquire(self, timeout: float) -> object:
        """Take the lock; wait `timeout` seconds, forever if that is negative. Raises TimeoutError."""

    def release(self) -> None:
        """Release the lock."""


class LockNote(Record):
    """The holder of a lock, as it describes itself: anybody who may write the file can write anything here."""

    what: str
    """`step speed of ppocr-det`."""
    run_pid: int
    """Pid of the process that started the holder, or of the holder itself."""
    pid: int = Field(gt=0, lt=2**31)
    user: str
    host: str
    since: AwareDatetime

    @classmethod
    def of_this_process(cls, what: str, run_pid: int = 0) -> LockNote:
        """Return the note of a lock that this process takes now."""
        now = datetime.now().astimezone()
        return cls(what=what, run_pid=run_pid, pid=os.getpid(), user=name_me(), host=platform.node(), since=now)

    def describe(self) -> str:
        """Return `step speed of ppocr-det (user ann, pid 812) since 10:42:07`."""
        host = "" if self.host == platform.node() else f", host {short_name(self.host)}"
        try:
            since = f" since {self.since.astimezone():%H:%M:%S}"
        except (OverflowError, ValueError):
            since = ""
        return f"{short_name(self.what)} (user {short_name(self.user)}{host}, pid {self.pid}){since}"


class FileLock:
    """A lock of a file, which exists while anybody needs it. Not on Windows."""

    def __init__(self, path: Path, mode: int = 0) -> None:
        """`mode` is that of a new file, 0 for the umask's.

        If it lets everybody write, no other file is opened: what its owner has protected is never written to, whoever
        linked it here.
        """
        self.path = path
        self._mode = mode
        self._descriptor = -1
        self._has_note = False

    def acquire(self, timeout: float) -> None:
        """Take the lock; wait `timeout` seconds, forever if that is negative.

        Raises TimeoutError, and OSError if the file cannot be opened or locked.
        """
        end_s = time.monotonic() + timeout
        while not self._take():
            if timeout >= 0 and time.monotonic() >= end_s:
                raise TimeoutError(f"{self.path} is held")
            time.sleep(_POLL_EVERY_S)

    def release(self) -> None:
        """Release the lock."""
        try:
            if self._has_note:
                os.ftruncate(self._descriptor, 0)
        finally:
            os.close(self._descriptor)
            self._has_note = False

    def write_note(self, note: LockNote) -> None:
        """Show processes that wait for this lock who holds it."""
        text = note.model_dump_json().encode() + b"\n"
        self._has_note = True
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def is_at_its_path(self) -> bool:
        """Return whether others see the file that this process has locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.lstat())
        except OSError:
            return False

    def _take(self) -> bool:
        import fcntl

        while True:
            self._descriptor = _open_regular(self.path, self._mode)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # NFS may refuse permission where others say that it would block
                os.close(self._descriptor)
                return False
            except OSError:
                os.close(self._descriptor)
                raise
            if self.is_at_its_path():
                return True
            os.close(self._descriptor)  # its last holder has removed it


def _open_regular(path: Path, mode: int) -> int:
    """Open a lock's file, which is created if it is missing. Raises OSError for anything but a file."""
    while True:
        try:
            # In a sticky folder, Linux refuses O_CREAT for another user's file. A pipe would block without O_NONBLOCK.
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            break
        except FileNotFoundError:
            if mode:
                create_file(path, mode)
            else:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (mode & 0o002 and not status.st_mode & 0o002):
        os.close(descriptor)
        raise PermissionError(f"{path} is not a lock that all users share")
    return descriptor


def open_lock(path: Path, mode: int = 0) -> Lock:
    """Return a lock, not yet taken."""
    if sys.platform == "win32":
        import filelock

        return filelock.FileLock(path)
    return FileLock(path, mode)


def take(lock: Lock) -> bool:
    """Take a lock if it is free. Raises OSError."""
    for _ in range(2):  # where there is no `flock`, the first attempt may only remove the file of a killed holder
        with contextlib.suppress(TimeoutError):
            lock.acquire(timeout=0)
            return True
    return False


def read_note(path: Path) -> LockNote | None:
    """Return the note of a lock's holder; None if there is none that can be read."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return LockNote.model_validate_json(file.read(_LONGEST_NOTE) or b"")
    except (OSError, ValidationError):
        return None


def describe_holder(path: Path) -> str:
    """Return a description of the process that holds a lock, by its note; `another process` without a current one."""
    note = read_note(path)
    return note.describe() if note is not None and is_current(note) else UNKNOWN_HOLDER


def is_current(note: LockNote) -> bool:
    """Return False if the process of a note has ended; True if it runs, or is elsewhere."""
    if note.host != platform.node():
        return True
    try:
        os.kill(note.pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


NO_LOCKS = "ndld_flow-no-locks.txt"
"""A file in the folder of locks if the file system does not support them, so that all processes know: files that exist
while somebody holds them are locks there."""
_WARNED = ".no-locks-told"
_USES = "uses"
_COLLECTING = "gc"
_REFUSALS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_NOTE = (
    "This file system did not support locks when ndld-flow first checked, so a lock here is a file that exists while "
    "it is held. If that has changed, delete this file while nothing is running.\n"
)


_LISTS: dict[Path, dict[str, set[str]]] = {}
"""Folder of locks -> lease that this process holds there -> keys and digests that it has listed."""
_GUARD = threading.Lock()


@dataclass(frozen=True)
class Locks:
    """Locks by name, each a file in one folder. The locks of a killed process are free at once."""

    folder: Path

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Hold the lease of a run, whose results `gc` keeps."""
        with self.lease("run", uuid4().hex[:12]):
            yield

    def use(self, names: Iterable[str]) -> None:
        """List keys or digests as used by this process, until the leases that it holds now end.

        Call it before reading their results: `gc` may be about to remove them.
        """
        wanted = set(names)
        with _GUARD:
            lists = _LISTS.get(self.folder.absolute(), {})
            new = {lease: wanted - listed for lease, listed in lists.items()}
        if any(new.values()):
            with self.hold(_USES), _GUARD:
                for lease, added in new.items():
                    if lease in lists:
                        path = self.folder / f"{lease}.uses"
                        with path.open("a", encoding="ascii") as file:
                            file.writelines(f"{name}\n" for name in added)
                        share(path)
                        lists[lease] |= added

    @contextlib.contextmanager
    def used(self) -> Iterator[set[str]]:
        """Yield the keys and digests that runs use; during the block no others are listed."""
        with self.hold(_USES):
            yield {name for path in self.folder.glob("*.uses") for name in path.read_text(encoding="ascii").split()}

    @contextlib.contextmanager
    def collecting(self, what: str, report_wait: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Hold the lock of garbage collection, which also keeps the lists of used results."""
        with self.hold(_COLLECTING, report_wait, what):
            self._remove_lists()
            yield

    @contextlib.contextmanager
    def lease(self, kind: str, name: str) -> Iterator[None]:
        """Hold a lock with a unique name, which others can query; the lease of a killed process ends at once."""
        lock = self.open(f"{kind}-{name}")
        with self.hold("leases"):
            lock.acquire(timeout=-1)
        with _GUARD:
            _LISTS.setdefault(self.folder.absolute(), {})[f"{kind}-{name}"] = set()
        try:
            yield
        finally:
            with _GUARD:
                listed = _LISTS[self.folder.absolute()].pop(f"{kind}-{name}")
            if listed:
                with contextlib.suppress(OSError), self.hold(_USES):
                    if not self.is_held(_COLLECTING):
                        (self.folder / f"{kind}-{name}.uses").unlink(missing_ok=True)
            self._remove(f"{kind}-{name}", lock)

    @contextlib.contextmanager
    def leases(self, kind: str) -> Iterator[set[str]]:
        """Yield the names of active leases of a kind; during the block no new ones start."""
        with self.hold("leases"):
            names = {path.stem for path in self.folder.glob(f"{kind}-*.lock")}
            yield {name.removeprefix(f"{kind}-") for name in names if not self._remove_free(name)}

    def is_leased(self, kind: str, name: str) -> bool:
        """Return whether the holder of a lease is alive."""
        return self._is_alive(f"{kind}-{name}")

    def leased(self, kind: str) -> set[str]:
        """Return the names of active leases of a kind."""
        with self.leases(kind) as alive:
            return alive

    def remove_unheld(self) -> None:
        """Remove the files of free locks. A process that waits for one of them creates it again."""
        for path in self.folder.glob("*.lock"):
            self._remove_free(path.stem)

    @contextlib.contextmanager
    def hold(self, name: str, report_wait: Callable[[str], None] = lambda _: None, what: str = "") -> Iterator[None]:
        """Hold a lock by name (a key, `leases`), exclusively among all processes.

        `report_wait` is called with a description of the process that holds it, if any; `what` describes this one to
        others that wait. The lock of a killed process is free at once.
        """
        lock = self.open(name)
        if not take(lock):
            report_wait(describe_holder(self.path(name)))
            lock.acquire(timeout=-1)
        try:
            if what and isinstance(lock, FileLock):
                lock.write_note(LockNote.of_this_process(what))
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def hold_keys(self, steps: Iterable[tuple[str, str]], report_wait: Callable[[str, str], None]) -> Iterator[None]:
        """Hold the keys of steps that run together, given as key and step's name.

        Steps in another order or group have other keys, so two processes lock the same keys in the same order, or none.
        `report_wait` is called with the name of a step whose key another process holds, and a description of that.
        """
        with contextlib.ExitStack() as held:
            for key, step in steps:
                held.enter_context(self.hold(key, partial(report_wait, step), f"step {step}"))
            yield

    def is_held(self, name: str) -> bool:
        """Return whether another process holds a lock at this moment."""
        lock = self.open(name)
        if not take(lock):
            return True
        lock.release()
        return False

    def open(self, name: str) -> Lock:
        """Return the lock of a name, not yet taken."""
        make_folder(self.folder)
        mode = shared_mode(self.folder) & 0o666
        if _has_locks(self.folder.absolute()):
            return open_lock(self.path(name), mode)
        from filelock import SoftFileLock

        return SoftFileLock(self.path(name).absolute(), mode=mode or 0o666, thread_local=False)

    def path(self, name: str) -> Path:
        """Return the path of a lock's file."""
        return self.folder / f"{name}.lock"

    def warn_once(self, report: Callable[[str], None]) -> None:
        """Warn, once per store, that its file system does not support locks."""
        if (self.folder / NO_LOCKS).exists():
            with contextlib.suppress(FileExistsError):
                (self.folder / _WARNED).touch(exist_ok=False)
                report(
                    f"the file system of {self.folder} does not support locks, so ndld-flow uses files that exist "
                    "while they are held. Those of a process that is killed on one machine block others until they are "
                    "deleted"
                )

    def sweep_lists(self) -> None:
        """Remove the lists of leases that have ended without removing them."""
        if any(self.folder.glob("*.uses")):
            with self.hold(_USES):
                if not self.is_held(_COLLECTING):
                    self._remove_lists()

    def _remove_lists(self) -> None:
        for path in self.folder.glob("*.uses"):
            if not self._is_alive(path.stem):
                path.unlink(missing_ok=True)

    def _is_alive(self, lease: str) -> bool:
        return self.path(lease).exists() and not self._remove_free(lease)

    def _remove_free(self, name: str) -> bool:
        """Remove a lock's file; False if a process holds it."""
        lock = self.open(name)
        if not take(lock):
            return False
        self._remove(name, lock)
        return True

    def _remove(self, name: str, lock: Lock) -> None:
        """Remove the file of a held lock: processes that have opened it notice that; filelock's remove theirs."""
        if isinstance(lock, FileLock):
            with contextlib.suppress(OSError):
                self.path(name).unlink()
        lock.release()


@lru_cache
def _has_locks(folder: Path) -> bool:
    if (folder / NO_LOCKS).exists():
        return False
    if any(_try_lock(folder) for _ in range(3)):  # a server may run out of locks for a moment
        return True
    (folder / NO_LOCKS).write_text(_NOTE, encoding="utf-8")
    share(folder / NO_LOCKS)
    return False


def _try_lock(folder: Path) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    probe = folder / f".probe-{uuid4().hex[:12]}"
    with probe.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _REFUSALS
        finally:
            probe.unlink(missing_ok=True)
    return True
