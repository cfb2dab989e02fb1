"""Libraries that runs have created in the user's cache folder, such as the TensorRT of a required release."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ndld_flow.base import users
from ndld_flow.base.errors import BackendError
from ndld_flow.store.files import make_folder, remove_folder
from ndld_flow.store.locks import WAITS, Locks

BUILDING = "building"
"""Folder next to the libraries for unfinished ones."""
_LEASES = contextlib.ExitStack()
"""Leases of the libraries that this process uses, until it ends."""
_LEASED: set[Path] = set()
Found = TypeVar("Found")


@dataclass(frozen=True)
class KeptLibrary:
    """A folder with a library, or an unfinished one."""

    folder: Path
    locks: Locks
    """The lock with the folder's name is held while the library is created."""
    label: str = ""
    """What it is, for people; empty if the folder's name says it."""

    @property
    def used_at(self) -> float:
        """Return the time of its last use, in seconds since 1970; raises OSError if it is gone."""
        return self.folder.stat().st_mtime

    @property
    def size_bytes(self) -> int:
        """Return the size of its files."""
        size, waiting = 0, [str(self.folder)]
        while waiting:  # a library may have 10,000 files
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    with contextlib.suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_size
        return size

    @property
    def in_use(self) -> bool:
        """Return whether a process holds a lease of it (`Locks.lease`), whose kind is the folder's name."""
        return bool(self.locks.leased(self.folder.name))

    def remove(self) -> None:
        """Remove it unless it is in use; a process that is creating it is waited for. Raises OSError."""
        with self.locks.hold(self.folder.name):
            if self.in_use:
                return
            aside = self.folder
            if aside.parent.name != BUILDING:
                # Whatever a killed process leaves there is removed with the unfinished ones.
                aside = aside.parent / BUILDING / aside.name
                remove_folder(aside)
                make_folder(aside.parent)
                self.folder.rename(aside)
            remove_folder(aside)


def kept_root(name: str) -> Path:
    """Return a folder of the user's cache for libraries. Raises BackendError if there is no home folder."""
    try:
        return users.cache_folder() / name
    except RuntimeError as error:
        raise BackendError(f"there is no folder for {name} ({error}): set XDG_CACHE_HOME") from None


def find_kept(name: str, own: str, label: Callable[[Path], str] = lambda folder: "") -> list[KeptLibrary]:
    """Return the libraries in a folder of the user's cache whose names match `own`, unfinished ones included."""
    try:
        root = kept_root(name)
    except BackendError:
        return []
    if not os.access(root, os.R_OK | os.X_OK):  # absent, or of another user whose HOME this process inherited
        return []
    folders = [path for path in (*root.glob("*/"), *root.glob(f"{BUILDING}/*/")) if re.fullmatch(own, path.name)]
    return [KeptLibrary(folder, Locks(root / "locks"), label(folder)) for folder in sorted(folders)]


def provide_kept(
    folder: Path,
    title: str,
    find: Callable[[], Found | None],
    create: Callable[[Path], None],
    report: Callable[[str], None],
) -> Found | None:
    """Return what `find` finds in a folder of the cache, after `create` has filled it if it found nothing.

    The folder is locked meanwhile, and this process keeps a lease of it until it ends. `create` gets an empty folder
    that takes its place at the end, unless that fails. Raises BackendError if the folder cannot be written.
    """
    locks = Locks(folder.parent / "locks")
    try:
        with locks.hold(folder.name, lambda holder: report(f"{WAITS}{holder}, which creates {title}"), title):
            kept = find()
            if kept is None:
                with _created_aside(folder) as building:
                    create(building)
                kept = find()
            if folder not in _LEASED:
                if not _LEASED:
                    atexit.register(_LEASES.close)  # while modules that release locks still exist
                _LEASES.enter_context(locks.lease(folder.name, uuid.uuid4().hex[:12]))
                _LEASED.add(folder)
            with contextlib.suppress(OSError):
                os.utime(folder)  # `gc --libraries` keeps what was used lately
    except OSError as error:
        raise BackendError(
            f"{title} cannot be kept in {folder.parent} ({error.strerror or error}): free or repair it"
        ) from None
    return kept


@contextlib.contextmanager
def _created_aside(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` at the end, unless the block fails. The caller holds its lock."""
    building = folder.parent / BUILDING / folder.name
    remove_folder(building)  # of a killed process
    make_folder(building)
    try:
        yield building
    except BaseException:
        remove_folder(building)
        raise
    remove_folder(folder)
    building.rename(folder)  # nothing uses an environment's own programs, which the new place would break
