"""Locks between the processes that share a store: one for each key, and leases that others see are held."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from ndld_flow.artifacts.lock_folders import FolderLock, remove_leftovers

NO_LOCKS = "ndld_flow-no-locks.txt"
"""Stands in the folder of locks where the file system has none, so that all who share it do without."""
_TOLD = ".no-locks-told"
_REFUSALS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_NOTE = (
    "This file system had no locks when ndld_flow first looked: it uses folders with signs of life here. If that has "
    "changed, delete this file while nothing runs.\n"
)


class Lock(Protocol):
    """What a lock can do; filelock's and ours do."""

    def acquire(self, timeout: float) -> object:
        """Take it; wait as many seconds as `timeout`, for ever where that is negative. Raises TimeoutError."""

    def release(self) -> None:
        """Give it back."""


@dataclass(frozen=True)
class Locks:
    """Locks by name, each a file in one folder. A killed holder's locks are free at once."""

    folder: Path

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Say that a run works in this store, so that `gc` keeps its hands off."""
        with self.lease("run", uuid4().hex[:12]):
            yield

    @contextlib.contextmanager
    def without_runs(self) -> Iterator[bool]:
        """Keep new runs from starting; True when none is at work."""
        with self.leases("run") as alive:
            yield not alive

    @contextlib.contextmanager
    def lease(self, kind: str, name: str) -> Iterator[None]:
        """Hold a lock of a name that is used once, which others can see is held; killed holders' leases end at once."""
        lock = self.open(f"{kind}-{name}")
        with self.hold("leases"):
            lock.acquire(timeout=-1)
        try:
            yield
        finally:
            self._remove(f"{kind}-{name}")
            lock.release()

    @contextlib.contextmanager
    def leases(self, kind: str) -> Iterator[set[str]]:
        """Names of the leases of a kind whose holders live; meanwhile no new ones begin."""
        with self.hold("leases"):
            found = {path.stem for path in self.folder.glob(f"{kind}-*.lock")}
            yield {name.removeprefix(f"{kind}-") for name in found if not self._remove_free(name)}

    def leased(self, kind: str) -> set[str]:
        """Names of the leases of a kind whose holders live."""
        with self.leases(kind) as alive:
            return alive

    def remove_unheld(self) -> None:
        """Remove the files of locks that nobody holds. Who waits for one of them finds it gone, and makes it anew."""
        for path in self.folder.glob("*.lock"):
            self._remove_free(path.stem)
        remove_leftovers(self.folder)

    @contextlib.contextmanager
    def hold(self, name: str, tell_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a lock by name (a key, `leases`) against all other processes; a killed holder's is free at once.

        `tell_wait` hears when another holds it.
        """
        lock = self.open(name)
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            tell_wait()
            lock.acquire(timeout=-1)
        try:
            yield
        finally:
            lock.release()

    def is_held(self, name: str) -> bool:
        """Whether another process holds a lock right now."""
        lock = self.open(name)
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            return True
        lock.release()
        return False

    def open(self, name: str, mode: int | None = None) -> Lock:
        """The lock of a name, not yet taken; `mode`: of its file, where it is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.lock"
        if not _has_locks(self.folder.absolute()):
            return FolderLock(path.absolute())
        from filelock import FileLock

        return FileLock(path) if mode is None else FileLock(path, mode=mode)

    def tell_once(self, tell: Callable[[str], None]) -> None:
        """Say, the first time in a store, that its file system has no locks."""
        if (self.folder / NO_LOCKS).exists():
            with contextlib.suppress(FileExistsError):
                (self.folder / _TOLD).touch(exist_ok=False)
                tell(
                    f"the file system of {self.folder} has no locks: ndld_flow uses folders with signs of life, which "
                    "is slower. What is killed on one machine holds up others for 5 minutes"
                )

    def _remove_free(self, name: str) -> bool:
        """Remove a lock's file; False where somebody holds it."""
        lock = self.open(name)
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            return False
        self._remove(name)
        lock.release()
        return True

    def _remove(self, name: str) -> None:
        """Remove the file of a lock that is held: who has opened it finds that it is no longer the one of this name."""
        with contextlib.suppress(OSError):  # a folder goes when it is given back
            (self.folder / f"{name}.lock").unlink()


@lru_cache
def _has_locks(folder: Path) -> bool:
    if (folder / NO_LOCKS).exists():
        return False
    if any(_try_lock(folder) for _ in range(3)):  # a server may be short of locks for a moment
        return True
    (folder / NO_LOCKS).write_text(_NOTE, encoding="utf-8")
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
