"""Locks between the processes that share a store: one for each key, and leases that others see are held."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from filelock import BaseFileLock


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
        with self.hold("leases"):
            yield not self._leases("run")

    @contextlib.contextmanager
    def lease(self, kind: str, name: str) -> Iterator[None]:
        """Hold a named lock that others can see is held; killed holders' leases end at once."""
        lock = self._lock(f"{kind}-{name}")
        with self.hold("leases"):
            lock.acquire()
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    @contextlib.contextmanager
    def leases(self, kind: str) -> Iterator[set[str]]:
        """Names of the leases of a kind whose holders live; meanwhile no new ones begin."""
        with self.hold("leases"):
            yield self._leases(kind)

    def leased(self, kind: str) -> set[str]:
        """Names of the leases of a kind whose holders live."""
        with self.leases(kind) as alive:
            return alive

    def _leases(self, kind: str) -> set[str]:
        """Names of the leases whose holders live; those of the dead are removed. Call it while holding `leases`."""
        alive = set()
        for path in self.folder.glob(f"{kind}-*.lock"):
            lock = self._lock(path.stem)
            try:
                lock.acquire(blocking=False)
            except TimeoutError:
                alive.add(path.stem.removeprefix(f"{kind}-"))
            else:
                path.unlink(missing_ok=True)
                lock.release()
        return alive

    @contextlib.contextmanager
    def hold(self, name: str, tell_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a lock by name (a key, `leases`) against all other processes; a killed holder's is free at once.

        `tell_wait` hears when another holds it.
        """
        lock = self._lock(name)
        try:
            lock.acquire(blocking=False)
        except TimeoutError:
            tell_wait()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def is_held(self, name: str) -> bool:
        """Whether another process holds a lock right now."""
        lock = self._lock(name)
        try:
            lock.acquire(blocking=False)
        except TimeoutError:
            return True
        lock.release()
        return False

    def _lock(self, name: str) -> BaseFileLock:
        from filelock import FileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f"{name}.lock")
