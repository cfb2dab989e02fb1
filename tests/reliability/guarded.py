"""Code under audit: its writes, processes and connections in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import RequestError
from tests.support.tally import Tally

_allowed: tuple[str, ...] | None = None
"""Folders in which may be written; None while nothing is watched."""
_seen: list[str] = []

_WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_CODE = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "pty.spawn")
_TO = {"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)}
"""Arguments that name what changes; of others the first does."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _allowed is None:
        return
    if event == "open":
        path, _, flags = arguments
        writes = flags is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        _look(event, [path] if writes else [])
    elif event in _WRITES:
        _look(event, [arguments[index] for index in _TO.get(event, (0,))], _folder_of(event, arguments))
    elif event in _CODE and not _asks_git(event, arguments):
        _seen.append(f"{event} {arguments}")


def _asks_git(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a process is the question for the commit, which each run asks of the installed git."""
    return event == "subprocess.Popen" and str(arguments[0]).startswith("/usr/") and "rev-parse" in arguments[1]


def _folder_of(event: str, arguments: tuple[Any, ...]) -> str:
    """Return the open folder that a path is relative to; nothing for the current directory."""
    descriptor = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()) if descriptor >= 0 else ""


def _look(event: str, paths: Sequence[object], folder: str = "") -> None:
    for path in paths:
        if not isinstance(path, str | bytes | os.PathLike):  # an open file
            continue
        where = os.path.realpath(Path(folder, os.fsdecode(path)))
        is_ours = any(where == folder or where.startswith(f"{folder}/") for folder in _allowed or ())
        if not is_ours and "/__pycache__/" not in f"{where}/" and where != os.devnull:
            _seen.append(f"{event} {where}")


@contextlib.contextmanager
def guarded(*folders: Path) -> Iterator[None]:
    """Inside, a write outside these folders, a process, or a connection fails when all is done.

    Python's own audit events tell; they cannot be left out by the code that is watched. Compiled modules may be kept.
    """
    global _allowed  # noqa: PLW0603 - an audit hook stays for good and has no other way to know
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    _seen.clear()
    _allowed = tuple(os.path.realpath(folder) for folder in folders)
    try:
        yield
    finally:
        _allowed = None
    assert not _seen, f"outside the outputs: {_seen[:5]}"


def attempt(verb: Callable[[], object], folder: Path, count: Tally, text: str) -> None:
    """Run an attack, which may be refused in one paragraph and must not write outside a folder; `told` names it."""
    try:
        with guarded(folder):
            verb()
        count.survived += 1
    except RequestError as error:
        assert "\n" not in str(error).strip(), text
        assert len(str(error)) < 2_000, text
        count.refused += 1
    except Exception as error:
        count.lost += 1
        raise AssertionError(text) from error


_hooked: list[bool] = []
