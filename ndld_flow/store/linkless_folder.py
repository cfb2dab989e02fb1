"""A shared cache in a folder that other people can write: no link below it is followed, and no file is overwritten."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ndld_flow.store.files import make_folder, share_open

SUPPORTED = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class LinklessFolder:
    """The operations of fsspec's file systems that a `RemoteStore` needs, on a folder.

    fsspec's own follow links, and so would read, replace and remove files of the user elsewhere. Each part of a path
    below the root is opened from its parent's descriptor, so that nobody can put a link in its place meanwhile. A link
    counts as missing when something is read or removed, and is an error when something is written.
    """

    protocol = "file"

    def __init__(self, root: str) -> None:
        self._root = root

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is remembered."""

    def find(self, place: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        """Return the regular files below a folder, by their paths."""
        assert detail
        found = {}
        with self._opened(f"{place}/.") as (folder, _):
            for below, _, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):  # another process was faster
                        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            path = os.path.normpath(f"{place}/{below}/{name}")
                            found[path] = {"size": status.st_size, "mtime": status.st_mtime}
        return found

    def info(self, place: str) -> dict[str, Any]:
        with self._opened(place) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return {"size": status.st_size, "type": "file" if stat.S_ISREG(status.st_mode) else "other"}

    def cat_file(self, place: str, start: int, end: int) -> bytes:
        with self._reading(place) as file:
            file.seek(start)
            return file.read(end - start)

    def get_file(self, place: str, target: str) -> None:
        with self._reading(place) as file, Path(target).open("xb") as copy:
            left = os.fstat(file.fileno()).st_size  # and no more: somebody may append to it forever
            while left > 0 and (chunk := file.read(min(left, 2**20))):
                copy.write(chunk)
                left -= len(chunk)

    def put_file(self, source: str, place: str) -> None:
        with Path(source).open("rb") as file, self._creating(place) as copy:
            shutil.copyfileobj(file, copy, 2**20)

    def pipe_file(self, place: str, data: bytes, mode: str = "overwrite") -> None:
        del mode  # the name is new, and renamed afterwards
        with self._creating(place) as file:
            file.write(data)

    def mv(self, place: str, target: str) -> None:
        """Rename a file, in the place of whatever has the name, but not through it."""
        with self._opened(place) as (folder, name), self._opened(target) as (other, new):
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)

    def rm_file(self, place: str) -> None:
        with self._opened(place) as (folder, name):
            os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def _reading(self, place: str) -> Iterator[BinaryIO]:
        with self._opened(place) as (folder, name):
            try:
                descriptor = os.open(name, _READ, dir_fd=folder)
            except OSError as error:
                raise _missing(place) if error.errno == errno.ELOOP else error from None
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise _missing(place)
                yield file

    @contextlib.contextmanager
    def _creating(self, place: str) -> Iterator[BinaryIO]:
        if not os.path.islink(self._root):  # noqa: PTH114
            make_folder(Path(self._root))
        with (
            self._opened(place, create=True) as (folder, name),
            os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb") as file,
        ):
            yield file
            share_open(file.fileno(), Path(self._root))

    @contextlib.contextmanager
    def _opened(self, place: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder of a path, and the path's last part."""
        *parts, name = place.removeprefix(f"{self._root}/").split("/")
        folder = os.open(self._root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))  # the user's own choice, a link or not
        try:
            for part in parts:
                below = self._open_below(folder, part, place, create=create)
                os.close(folder)
                folder = below
            yield folder, name
        finally:
            os.close(folder)

    def _open_below(self, folder: int, part: str, place: str, *, create: bool) -> int:
        created = False
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
                created = True
        try:
            below = os.open(part, _FOLDER, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if create:
                raise OSError(errno.ELOOP, f"{part!r} is a link or a file in the place of a folder", place) from None
            raise _missing(place) from None
        if created:  # as the root is: another thread may have created the folder above, and not yet shared it
            share_open(below, Path(self._root))
        return below


def _missing(place: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
