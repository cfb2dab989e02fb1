"""Libraries that runs have created in the user's cache folder, such as the TensorRT of a required release."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.store.files import make_folder, remove_folder
from ndld_flow.store.locks import Locks

BUILDING = "building"
"""Folder next to the libraries for unfinished ones."""


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
