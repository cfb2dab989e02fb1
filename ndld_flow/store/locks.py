"""Locks between the processes that share a store: one for each key, and leases that other processes can query.

A lease has a file `<lease>.uses` that lists the keys and digests its holder uses, so that `gc` can run concurrently. A
run lists a key or digest before it looks for it; `gc` reads the lists and removes unlisted results while it holds the
lock `uses`, which listing takes, too. So either the run's key is listed in time, or the run finds no result and
computes it. While `gc` works, the lists of runs that end stay: it may have read the folders of runs before they were
written.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from uuid import uuid4

from ndld_flow.store.file_lock import FileLock, Lock, LockNote, describe_holder, open_lock, take
from ndld_flow.store.files import make_folder, share, shared_mode

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
            self._remove_list(f"{kind}-{name}")
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

    def _remove_list(self, lease: str) -> None:
        with _GUARD:
            listed = _LISTS[self.folder.absolute()].pop(lease)
        if listed:
            with contextlib.suppress(OSError), self.hold(_USES):
                if not self.is_held(_COLLECTING):
                    (self.folder / f"{lease}.uses").unlink(missing_ok=True)

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
