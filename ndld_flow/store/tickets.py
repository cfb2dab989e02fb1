"""Tickets: files in a folder of all users by which processes queue for devices, and which no other user can forge.

A process that waits creates a file of its own and locks it for writing, which nobody else can: that needs a file that
is open for writing, and the owner alone may open it so. Therefore a ticket is valid while its process lives, and the
system invalidates that of a killed process at once. Other processes ask the system who holds the write lock; they never
lock a ticket, so that none can keep another's valid, and a lock that another user takes on it has no effect.

The mode of a ticket is its state, and the time of its last change, which the system sets, its place in the queue: only
the owner can change either, and only to a later place.

    0600  it is being written, and does not count
    0444  its process waits
    0644  its process holds the devices, since the time of the change
"""

# A lock of `flock` would not do: it needs no write access, so that anybody could hold it on another's ticket for ever.

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from ndld_flow.records.document import Record

_UNFINISHED, _WAITING, _HOLDING = 0o600, 0o444, 0o644
_PREFIX = "ndld_flow-ticket-"
_LONGEST_NOTE = 10_000
_UNFINISHED_FOR_S = 60.0
_FORGOTTEN_AFTER_S = 7 * 24 * 3600.0
_FLOCK = struct.Struct("hhqqi4x" if sys.platform == "linux" else "qqihh")
"""`struct flock` of 64-bit Linux, and of macOS."""


class TicketNote(Record):
    """The contents of a ticket, which its owner has chosen."""

    devices: tuple[str, ...]
    """Names of all that it needs at once: each CPU has one."""
    shown: str
    """The devices as displayed: `cpu 0-3`."""
    who: str
    """`step speed of ppocr-det`."""
    run_pid: int
    """Pid of the process that started the worker, or that computes the step itself."""


@dataclass(frozen=True)
class Ticket:
    """A ticket whose process lives."""

    path: Path
    uid: int
    pid: int
    """The process, as the system reports it; 0 if it is in another container."""
    note: TicketNote
    holds: bool
    changed_ns: int

    @property
    def rank(self) -> tuple[int, str]:
        """Return the place in the queue: the smaller, the earlier."""
        return self.changed_ns, self.path.name

    @property
    def since(self) -> datetime:
        """Return the time since when it waits, or holds the devices."""
        return datetime.fromtimestamp(self.changed_ns / 1e9, UTC)

    def needs(self, devices: Iterable[str]) -> bool:
        """Return whether it needs one of these devices."""
        return not set(self.note.devices).isdisjoint(devices)


class OwnTicket:
    """A ticket of this process."""

    def __init__(self, path: Path, descriptor: int, note: TicketNote) -> None:
        self.path = path
        self.note = note
        self.pid = os.getpid()
        self._descriptor = descriptor

    def wait(self) -> None:
        """Join the end of the queue."""
        os.fchmod(self._descriptor, _WAITING)

    def hold(self) -> None:
        """Show that this process holds the devices."""
        os.fchmod(self._descriptor, _HOLDING)

    def read(self) -> Ticket | None:
        """Return the ticket as others see it; None if somebody has removed it, so that they do not."""
        status = os.fstat(self._descriptor)
        try:
            visible = os.path.samestat(self.path.lstat(), status)
        except OSError:
            visible = False
        return _describe(self.path, status, self.pid, self.note) if visible else None

    def close(self) -> None:
        """Leave the queue."""
        _OWN.pop(self.path, None)
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)


_OWN: dict[Path, OwnTicket] = {}
"""The tickets of this process. Closing any descriptor of a file releases the locks of the process on it, so these files
are never opened again."""
_GUARD = threading.Lock()


@dataclass
class TicketFolders:
    """Folders in which processes look for tickets; new ones are created in the first that can be written."""

    folders: Sequence[Path]
    machine: str
    """Part of the names: containers of one host have the same, and hosts that share a folder have different ones."""
    _dead: set[tuple[str, int]] = field(default_factory=set)
    """Name and inode of files that are no valid tickets, and will never be."""
    _notes: dict[tuple[str, int], TicketNote] = field(default_factory=dict)

    @contextlib.contextmanager
    def ticket(self, note: TicketNote) -> Iterator[OwnTicket]:
        """Yield a new ticket that waits, and remove it afterwards. Raises OSError if no folder supports it."""
        with _GUARD:
            own = self._create(note)
            _OWN[own.path] = own
        with contextlib.closing(own):
            own.wait()
            yield own

    def find(self) -> list[Ticket]:
        """Return the valid tickets of this machine, earliest first, and remove invalid ones where that is permitted."""
        with _GUARD:
            found = [self._read(path) for folder in self.folders for path in self._list(folder)]
        return sorted((ticket for ticket in found if ticket is not None), key=lambda ticket: ticket.rank)

    def _list(self, folder: Path) -> list[Path]:
        try:
            return list(folder.glob(f"{_PREFIX}{self.machine}-*"))
        except OSError:
            return []

    def _create(self, note: TicketNote) -> OwnTicket:
        refused: OSError | None = None
        for folder in self.folders:
            path = folder / f"{_PREFIX}{self.machine}-{time.time_ns():020}-{uuid4().hex[:12]}"
            try:
                return OwnTicket(path, _create_locked(path, note.to_json().encode()), note)
            except OSError as error:
                refused = refused or error
        raise refused or FileNotFoundError("no folder for tickets")

    def _read(self, path: Path) -> Ticket | None:
        own = _OWN.get(path)
        if own is not None and own.pid == os.getpid():  # a forked process has a copy of its parent's
            return own.read()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None  # a link, or removed in the meantime, or its owner hides it
        try:
            return self._read_open(path, descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _read_open(self, path: Path, descriptor: int) -> Ticket | None:
        status = os.fstat(descriptor)
        known = path.name, status.st_ino
        mode = stat.S_IMODE(status.st_mode)
        if known in self._dead or (mode == _UNFINISHED and time.time() - status.st_mtime < _UNFINISHED_FOR_S):
            return None
        pid = _find_writer(descriptor) if stat.S_ISREG(status.st_mode) and mode != _UNFINISHED else None
        if pid is None:
            self._dead.add(known)
            if stat.S_ISREG(status.st_mode):
                path.unlink(missing_ok=True)  # others may not, in a sticky folder
            return None
        note = self._notes.get(known)
        if note is None:
            try:
                note = self._notes[known] = TicketNote.model_validate_json(os.pread(descriptor, _LONGEST_NOTE, 0))
            except ValidationError:
                self._dead.add(known)
                return None
        return _describe(path, status, pid, note)


def remove_forgotten_tickets(folders: Iterable[Path]) -> None:
    """Remove this user's tickets whose processes have ended, of earlier starts of the machine too.

    Only after a week: where the folder is on a network, a lock of another host may be invisible here.
    """
    for path in (path for folder in folders for path in folder.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError), _GUARD:
            if path in _OWN or path.is_symlink() or time.time() - path.stat().st_ctime < _FORGOTTEN_AFTER_S:
                continue
            with path.open("rb") as file:
                if _find_writer(file.fileno()) is None:
                    path.unlink()


def _describe(path: Path, status: os.stat_result, pid: int, note: TicketNote) -> Ticket:
    holds = stat.S_IMODE(status.st_mode) == _HOLDING
    return Ticket(path, status.st_uid, pid, note, holds, status.st_ctime_ns)


def _create_locked(path: Path, contents: bytes) -> int:
    """Create and lock a file before others can open it; return its descriptor. Raises OSError."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _UNFINISHED)
    try:
        os.fchmod(descriptor, _UNFINISHED)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.write(descriptor, contents) != len(contents):
            raise OSError(f"{path} cannot be written")
    except OSError:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def _find_writer(descriptor: int) -> int | None:
    """Return the pid of the process that has locked a file for writing, 0 for one in another container; None if there
    is none."""
    import fcntl

    wanted = (fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)  # conflicts with write locks only
    if sys.platform == "linux":
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*wanted)))
    else:
        packed = _FLOCK.pack(0, 0, 0, fcntl.F_RDLCK, os.SEEK_SET)
        _, _, pid, kind, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, packed))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
