"""Files, folders and machine properties that a command consults, so that an unchanged command can be repeated at once.

While a `Consultation` is open, every file that Python opens for reading and every folder that it lists is noted by an
audit hook (PEP 578), so that no reader has to register. Code that depends only on a file's status, without opening it,
calls `note_path`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TypeAlias

from ndld_flow.base.stamps import is_settled, make_stamp

Stamp: TypeAlias = list[int] | str | None
"""The stamp of a file or a folder (`base/stamps.py`); the target of a link; None if there is nothing."""

_LISTING = frozenset({"os.listdir", "os.scandir"})
_ASKING = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.startfile", "os.system", "subprocess.Popen"}
    | {"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
)
"""Events by which a command asks other programs and hosts, whose answers no stamp covers."""
_WRITING = os.O_WRONLY | os.O_RDWR


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a file or a folder, following links."""
    try:
        return make_stamp(os.stat(path))  # noqa: PTH116 - pathlib is slower, and a receipt has thousands of paths
    except (OSError, ValueError):
        return None


def link_target(path: str) -> Stamp:
    """Return the target of a symbolic link; of anything else, its stamp."""
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return stamp_of(path)


class Consultation:
    """The paths and machine properties that a command has consulted since it began."""

    def __init__(self) -> None:
        self.paths: dict[str, Stamp] = {}
        """Absolute path -> its stamp when it was first consulted."""
        self.places: dict[tuple[str, str], str] = {}
        """Arguments of `describe_place` -> its result."""
        self.unsettled: set[str] = set()
        """Paths that had just changed when they were consulted."""
        self.repeatable = True
        """False if the command depended on something else, such as a server that did not answer."""
        self.asked_others = False
        """True if it asked another program or host."""
        self._created: set[str] = set()
        """Files of this command itself, such as temporary ones that a library reads."""

    def note(self, path: str) -> None:
        """Note a path as it is now, unless it is already noted."""
        path = os.path.abspath(path)  # noqa: PTH100 - pathlib is slower, and this is called for each file
        if path not in self.paths and path not in self._created:
            self.paths[path] = stamp = stamp_of(path)
            if isinstance(stamp, list) and not is_settled(stamp):
                self.unsettled.add(path)

    def note_written(self, path: str) -> None:
        """Note that a file is about to be written."""
        path = os.path.abspath(path)  # noqa: PTH100
        if path not in self.paths and stamp_of(path) is None:
            self._created.add(path)


_open: Consultation | None = None
_is_hooked = False


@contextlib.contextmanager
def consulting() -> Iterator[Consultation]:
    """Collect what this process consults inside the block. Only one consultation is open at a time."""
    global _open, _is_hooked  # noqa: PLW0603 - an audit hook is global and cannot be removed
    if not _is_hooked:
        sys.addaudithook(_hear)
        _is_hooked = True
    _open = consultation = Consultation()
    try:
        yield consultation
    finally:
        _open = None


def stop_consulting() -> None:
    """End the open consultation early, as when a command starts to compute."""
    global _open  # noqa: PLW0603
    _open = None


def forbid_repeat() -> None:
    """Note that the command depends on more than files and this machine, so that it is not repeated."""
    if _open is not None:
        _open.repeatable = False


def note_path(path: str | os.PathLike[str]) -> None:
    """Note a path whose status matters, if a consultation is open."""
    if _open is not None:
        _open.note(os.fspath(path))


def note_place(where: str, device: str, description: str) -> None:
    """Note the description of this machine that is part of a key, if a consultation is open."""
    if _open is not None:
        _open.places[where, device] = description


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    """Note what an audit event reads. Descriptors and written files are ignored."""
    if _open is None or (event != "open" and event not in _LISTING):
        if event in _ASKING and _open is not None:
            _open.asked_others = True
        return
    path = arguments[0]
    if not isinstance(path, str | bytes):
        return
    path = os.fsdecode(path)
    if event == "open" and _writes(arguments):
        _open.note_written(path)
    elif event != "open" or not os.path.isdir(path):  # noqa: PTH112 - see `note`
        _open.note(path)  # a folder that is only opened is synced or removed; a listing reads its entries


def _writes(arguments: tuple[object, ...]) -> bool:
    """Return whether the arguments of the event `open` (path, mode, flags) allow writing."""
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)
