"""Locks on files, which the system releases when their holder dies, with a note of the holder for processes that wait.

A lock is one of `flock`. filelock, which Windows and file systems without `flock` need, is imported only for these: it
imports asyncio and sqlite3, which take longer than a run that has nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import AwareDatetime, Field, ValidationError

from ndld_flow.base.text import short_name
from ndld_flow.base.users import name_me
from ndld_flow.records.document import Record
from ndld_flow.store.files import create_file

UNKNOWN_HOLDER = "another process"
_POLL_EVERY_S = 0.05
_LONGEST_NOTES = 4096


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
        text = _line(note)
        self._has_note = True
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def add_note(self, note: LockNote) -> None:
        """Add the note of a process that does without this lock to that of its holder. Raises OSError."""
        with os.fdopen(_open_regular(self.path, self._mode), "wb", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            file.write(_line(note))

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


def _line(note: LockNote) -> bytes:
    return note.model_dump_json().encode() + b"\n"


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


def read_notes(path: Path) -> list[LockNote]:
    """Return the notes in a lock's file: that of its holder, and those of others that do not wait for it."""
    if sys.platform == "win32":
        return []
    notes: list[LockNote] = []
    with contextlib.suppress(OSError, ValidationError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            for line in (file.read(_LONGEST_NOTES) or b"").splitlines():
                notes.append(LockNote.model_validate_json(line))
    return notes


def describe_holder(path: Path, own: LockNote | None = None) -> str:
    """Return a description of the process that holds a lock, by its note; `another process` without a current one.

    `own` is the note of a process that has added it without holding the lock.
    """
    notes = [note for note in read_notes(path) if note != own]
    return notes[0].describe() if notes and is_current(notes[0]) else UNKNOWN_HOLDER


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
