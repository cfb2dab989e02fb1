"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from uuid import uuid4

FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file, copy-on-write (btrfs, xfs, bcachefs)."""


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text as `write_bytes_atomically` writes bytes."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write a file aside, sync it, and rename it into place; its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's contents; where the file system can, share the blocks instead (a reflink).

    Never a hard link: whoever writes to one name would change the other too, and onnx refuses hard-linked external
    data.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not share_blocks(source, target):
        shutil.copyfile(source, target)


def share_blocks(source: Path, target: Path) -> bool:
    """Make a copy that takes no room (a reflink); False where the file system cannot, the target empty or not there."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with source.open("rb") as read, target.open("wb") as write:
            fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the files and folders below a folder, and their names, survive a power cut."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(place, name))
        sync(place)


def sync(path: str | Path) -> None:
    """Make a file's contents, or the names in a folder, survive a power cut."""
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all below it, read-only files too; a missing one is fine."""
    shutil.rmtree(folder, ignore_errors=True)


def point_to(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target` in one move; where links are refused, a file that holds the path."""
    relative = os.path.relpath(target, link.parent)
    aside = link.with_name(f".{link.name}.{uuid4().hex[:8]}")
    try:
        aside.symlink_to(relative, target_is_directory=True)
    except OSError:
        aside.write_text(relative, encoding="utf-8")
    aside.replace(link)


def follow(link: Path) -> Path | None:
    """Where `point_to` made a link point, or None when there is none or its target is gone."""
    if link.is_symlink():
        target = link.parent / link.readlink()
    elif link.is_file():
        target = link.parent / link.read_text(encoding="utf-8").strip()
    else:
        return None
    return target if target.exists() else None
