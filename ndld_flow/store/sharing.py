"""Permissions of files in folders that several users write.

The first user's umask must not lock the others out, nor may a private folder become public. So, as in a shared Git
repository, files in a folder that others than its owner can write get its permissions and its group; in any other
folder, and in a sticky one such as /tmp, the umask decides.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from uuid import uuid4


def shared_mode(folder: Path) -> int:
    """Return the permissions that a folder gives to new files; 0 where the umask decides."""
    if sys.platform == "win32":
        return 0
    try:
        mode = folder.stat().st_mode
    except OSError:
        return 0
    return 0 if mode & stat.S_ISVTX or not mode & 0o022 else mode & 0o2777


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        share(each)
    if not missing:
        folder.mkdir(exist_ok=True)  # raises if it is no folder


def share(path: Path) -> None:
    """Give a file or folder that was just created the permissions and the group of its folder, if that is shared."""
    _share(path, path.parent)


def share_tree(folder: Path, like: Path) -> None:
    """Give a folder, and all below it, the permissions and the group of another, if that is shared."""
    if shared_mode(like):
        for place, _, names in os.walk(folder):
            for name in ("", *names):
                _share(Path(place, name), like)


def _share(path: Path, like: Path) -> None:
    mode = shared_mode(like)
    if not mode or path.is_symlink():
        return
    with contextlib.suppress(OSError):  # not every file system has permissions
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            mode &= 0o666 if found.st_mode & 0o200 else 0o444
        with contextlib.suppress(OSError):  # this user may not be in the group
            os.chown(path, -1, like.stat().st_gid)
        path.chmod(stat.S_IMODE(found.st_mode) | mode)


def create_file(path: Path, mode: int) -> None:
    """Create an empty file if it is missing, at once with these permissions. Raises OSError."""
    aside = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        os.close(open_new_file(aside, mode))
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)


def open_new_file(path: Path, mode: int) -> int:
    """Create a file with these permissions, whatever the umask; return its descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # follows no link
    with contextlib.suppress(OSError, AttributeError):  # not every system has permissions
        os.fchmod(descriptor, mode)
    return descriptor
