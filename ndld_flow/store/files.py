"""Files of the store: atomic writes, permissions that several users share, and sealed notes.

The first user's umask must not lock the others out, nor may a private folder become public. So, as in a shared Git
repository, files in a folder that users other than its owner can write to get its permissions and its group; in any
other folder, and in a sticky one such as /tmp, the umask applies.

Truncated JSON is invalid, but JSON with a wrong digit is still JSON. So an object's first member, its seal, is the
digest of the remaining text. Notes contain values that can be recomputed: a damaged note counts as missing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from blake3 import blake3

from ndld_flow.base.text import lazy_pattern


def shared_mode(folder: Path | int) -> int:
    """Return the permissions that a folder gives to new files; 0 if the umask applies."""
    if sys.platform == "win32":
        return 0
    try:
        mode = os.stat(folder).st_mode  # noqa: PTH116 - it may be a descriptor, as below
    except OSError:
        return 0
    return 0 if mode & stat.S_ISVTX or not mode & 0o022 else mode & 0o2777


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    existing = missing[-1].parent if missing else folder
    if shared_mode(existing.parent) and not shared_mode(existing) and existing.is_dir() and not any(existing.iterdir()):
        share(existing)  # another thread has just created it, and would share it only after we have written to it
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        share(each)
    if not missing:
        folder.mkdir(exist_ok=True)  # raises if it is not a folder


def share(path: Path) -> None:
    """Give a file or folder that was just created the permissions and the group of its folder, if that is shared."""
    _share(path, path.parent)


def share_tree(folder: Path, like: Path) -> None:
    """Give a folder, and all below it, the permissions and the group of another, if that is shared."""
    if shared_mode(like):
        for place, _, names in os.walk(folder):
            for name in ("", *names):
                _share(Path(place, name), like)


def share_open(descriptor: int, like: Path) -> None:
    """Give an open file or folder that was just created the permissions and the group of a folder."""
    _share(descriptor, like)


def _share(path: Path | int, like: Path) -> None:
    mode = shared_mode(like)
    if not mode or (isinstance(path, Path) and path.is_symlink()):
        return
    with contextlib.suppress(OSError):  # not every file system has permissions
        status = os.stat(path)  # noqa: PTH116
        if not stat.S_ISDIR(status.st_mode):
            mode &= 0o666 if status.st_mode & 0o200 else 0o444
        with contextlib.suppress(OSError):  # this user may not be in the group
            os.chown(path, -1, os.stat(like).st_gid)  # noqa: PTH116
        os.chmod(path, stat.S_IMODE(status.st_mode) | mode)  # noqa: PTH101


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
    """Create a file with these permissions, regardless of the umask; return its descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # follows no link
    with contextlib.suppress(OSError, AttributeError):  # not every system has permissions
        os.fchmod(descriptor, mode)
    return descriptor


FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file, copy-on-write (btrfs, xfs, bcachefs)."""
_SYNCED_AT_ONCE = 16
"""Number of files synced in parallel, which a disk writes together: 1,500 take 0.3 s, one by one 4 s."""
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""Errors of systems that cannot sync or open a folder."""
_LEFTOVER = lazy_pattern(r"\..+\.[0-9a-f]{8}", re.DOTALL)
_LEFT_AFTER_S = 3600.0
_LETTERS = 60
"""Maximum number of a name's characters in its temporary name: each may take four bytes, and most systems allow 255."""


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text as `writing_atomically` does. Raises OSError."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write a file as `writing_atomically` does. Raises OSError."""
    with writing_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing_atomically(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that is synced and renamed to `path` after the block; missing folders are created.

    The target of a link is written; a device or a pipe is written directly. Raises OSError; the old file then stays.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # /dev/null must stay a device
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    make_folder(path.parent)
    with _aside(path) as aside:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        share(aside)
        aside.replace(path)


def remember(note: Path, text: str) -> None:
    """Write a cached value; errors of the disk are ignored."""
    with contextlib.suppress(OSError):
        write_text_atomically(note, text)


@contextlib.contextmanager
def building_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is synced and renamed to `folder` after the block, or removed after an error.

    Raises OSError if `folder` exists and is not empty.
    """
    make_folder(folder.parent)
    with _aside(folder) as aside:
        aside.mkdir()
        yield aside
        place_folder(aside, folder)


def place_folder(built: Path, folder: Path) -> None:
    """Sync a folder and rename it to its final path, so that it survives a power cut. Raises OSError."""
    share_tree(built, folder.parent)
    sync_folder(built)
    try:
        built.rename(folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with _aside(folder) as aside:  # `built` is on another disk
            copy_folder(built, aside)
            share_tree(aside, folder.parent)
            sync_folder(aside)
            aside.rename(folder)
    sync(folder.parent)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder's files, folders and links without permissions, which not every disk has. Raises OSError."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.is_symlink():
            (target / path.name).symlink_to(path.readlink(), target_is_directory=path.is_dir())
        elif path.is_dir():
            copy_folder(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is removed after an error."""
    aside = path.with_name(_aside_name(path.name))
    try:
        yield aside
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is raised
            remove_any(aside)
        raise


def _aside_name(name: str) -> str:
    return f".{name[:_LETTERS]}.{uuid4().hex[:8]}"


def find_leftovers(folder: Path, is_left_out: Callable[[str], bool] = lambda _: False) -> list[Path]:
    """Return the temporary files and folders of killed processes that are older than an hour.

    Links to folders are not followed, and folders whose path `is_left_out` are not read.
    """
    found, waiting = list[Path](), [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(".") and _LEFTOVER.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # a running process has renamed it
                        if time.time() - entry.stat(follow_symlinks=False).st_mtime > _LEFT_AFTER_S:
                            found.append(Path(entry.path))
                if entry.is_dir(follow_symlinks=False) and not is_left_out(entry.path):
                    waiting.append(entry.path)
    return found


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's contents, or share its blocks if the file system can (a reflink).

    Never a hard link: a write to one name would change the other, and onnx rejects hard-linked external data.
    """
    with source.open("rb") as read:
        copy_open_file(read, target)


def copy_open_file(source: BinaryIO, target: Path) -> None:
    """Copy the contents of a file that was opened before as `copy_file` does, whatever its path leads to by now."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as write:
        if not (_clone(source, write) or _copied_by_kernel(source.fileno(), write.fileno())):
            write.truncate(0)
            shutil.copyfileobj(source, write, 1 << 20)


def share_blocks(source: Path, target: Path) -> bool:
    """Make a copy that takes no space (a reflink); False if that is impossible, with the target empty or missing."""
    try:
        with source.open("rb") as read, target.open("wb") as write:
            return _clone(read, write)
    except OSError:
        return False


def _clone(source: BinaryIO, target: BinaryIO) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _copied_by_kernel(source: int, target: int) -> bool:
    """Copy by copy_file_range, which takes half the time of sendfile; only Linux has it."""
    copy_file_range = getattr(os, "copy_file_range", None)
    done, size = 0, os.fstat(source).st_size
    try:
        while copy_file_range is not None and done < size:
            count = copy_file_range(source, target, min(size - done, 2**30), done, done)
            if not count:
                break
            done += count
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
    return done == size


def sync_folder(folder: Path) -> None:
    """Sync all files and folders below a folder to the disk. Raises OSError."""
    from concurrent.futures import ThreadPoolExecutor

    below = (Path(place, name) for place, _, names in os.walk(folder) for name in ("", *names))
    paths = [path for path in below if not path.is_symlink()]  # links are synced with their folder
    try:
        with ThreadPoolExecutor(_SYNCED_AT_ONCE) as several:
            for _ in several.map(sync, paths):
                pass
    except RuntimeError:  # no more threads can be started, for a limit of memory or of processes
        for path in paths:
            sync(path)


def sync(path: str | Path) -> None:
    """Sync a file's contents, or the names in a folder, to the disk. Raises OSError if the disk fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder that is removed afterwards. Python's own context manager hangs if it cannot be removed."""
    folder = Path(tempfile.mkdtemp(prefix="ndld_flow-"))
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all below it, read-only files too; a missing one is fine."""
    shutil.rmtree(folder, ignore_errors=True)


def move_aside(folder: Path, parent: Path) -> Path | None:
    """Rename a folder to a temporary name in `parent`, to remove it; None if it does not exist.

    Raises OSError if that is forbidden. `find_leftovers` finds what a killed process leaves.
    """
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        return folder.rename(parent / _aside_name(folder.name))
    return None


def remove_any(path: Path) -> None:
    """Remove a file, a link or a folder. Raises OSError for a file or a link."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def point_to(link: Path, target: Path) -> None:
    """Point a symbolic link to `target` atomically; on systems without links, write a file with the path.

    A folder in its place is the user's, and is renamed. Raises OSError; the old link then stays.
    """
    if link.is_dir() and not link.is_symlink():
        link.rename(link.with_name(f"{link.name}-set-aside-{uuid4().hex[:6]}"))
    relative = os.path.relpath(target.resolve(), link.parent.resolve())  # either may be behind a link
    with _aside(link) as aside:
        try:
            aside.symlink_to(relative, target_is_directory=True)
        except OSError:
            aside.write_text(relative, encoding="utf-8")
            share(aside)
            sync(aside)
        aside.replace(link)


def follow(link: Path) -> Path | None:
    """Return the target of a link that `point_to` wrote, or None if the link or its target is missing."""
    try:
        named = str(link.readlink()) if link.is_symlink() else link.read_text(encoding="utf-8").strip()
        target = link.parent / named
        return target if named and target.exists() else None
    except (OSError, ValueError):  # not a link of `point_to`
        return None


_OPENING = b'{"seal": "'
_DIGITS = 64


class BrokenSealError(ValueError):
    """A file has no seal, or its contents have changed since it was written."""


def seal(text: str) -> str:
    """Return a JSON object, which must not be empty, with the digest of its text as first member."""
    return f'{_OPENING.decode()}{blake3(text.encode()).hexdigest()}",{text[1:]}'


def unseal(data: bytes) -> bytes:
    """Return the sealed text. Raises BrokenSealError."""
    end = len(_OPENING) + _DIGITS
    text = b"{" + data[end:].removeprefix(b'",')
    if data[:end] != _OPENING + blake3(text).hexdigest().encode():
        raise BrokenSealError("its contents have changed since it was written")
    return text


def write_note(path: Path, value: object) -> None:
    """Write a value that can be recomputed; errors of the disk are ignored."""
    remember(path, seal(json.dumps({"note": value})))


def read_note(path: Path) -> Any:  # noqa: ANN401
    """Return the value of a note; None if it is missing or damaged."""
    try:
        return json.loads(unseal(path.read_bytes()))["note"]
    except (OSError, BrokenSealError):
        return None
