"""A store on another machine or in a bucket: the shared cache, reached through fsspec and laid out like a store.

::

    URL/objects/ab/abcdef.../model.onnx     an artifact's files
    URL/records/ab/abcdef....json           a StepRecord with a seal, by the step's key

Files are written first and the record last, so an existing record has its artifact. If a protocol shows incomplete
files, a file is written under another name and moved. Nothing from a remote store is trusted: data that does not match
its digest, or its key, counts as missing, and the next push writes it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from pydantic_core import from_json

from ndld_flow.base.errors import BackendError, FormatError
from ndld_flow.base.text import visible_name
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.digest import find_fault
from ndld_flow.store.files import make_folder, seal, share_open, unseal
from ndld_flow.store.hidden_credentials import Credentials
from ndld_flow.store.store import Store, find_record_fault

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


_SHOWS_WHOLE_FILES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Protocols that never show incomplete files, and can avoid replacing one."""
MAX_RECORD_BYTES = 64 * 2**20
"""Size limit of a record, which is read into memory."""


@dataclass(frozen=True)
class RemoteFile:
    """A file in a remote store."""

    path: str
    inner: str
    """Its path below `records` or `objects`."""
    size_bytes: int
    modified_s: float | None
    """Time of its last change in seconds since 1970; None if the protocol does not list it."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class RemoteStore:
    """Records and artifacts below a URL. Any number of machines may push and pull at once.

    Every method raises `BackendError` when the URL cannot be reached, read or written.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.damaged: set[str] = set()
        """Digests of artifacts that are damaged there: the next push writes them again."""
        self.other_versions: set[str] = set()
        """Keys of records of another version of ndld-flow, which are neither used nor replaced."""
        self._credentials = Credentials(url)

    def __str__(self) -> str:
        """Return the URL without credentials."""
        return self._credentials.hide(self.url)

    def push(self, records: Sequence[StepRecord], store: Store) -> None:
        """Write the records of steps that ran together, after their artifacts. Existing valid records stay."""
        for record in records:
            self.push_artifact(record.artifact, store)
        if self.find([record.key for record in records]) is None:
            for record in records:
                self._put_record(record)

    def find(self, keys: Sequence[str]) -> list[StepRecord] | None:
        """Return the records under these keys without their artifacts.

        None unless all exist, are from one measurement session, and none of their artifacts is known to be damaged.
        """
        return self.match([self.read_record(key) for key in keys])

    def match(self, records: Sequence[StepRecord | None]) -> list[StepRecord] | None:
        """Return the records of steps that ran together, under the conditions of `find`."""
        found = [record for record in records if record is not None]
        whole = len(found) == len(records) and self.damaged.isdisjoint(record.artifact.digest for record in found)
        return found if whole and len({record.started_at for record in found}) == 1 else None

    def pull_artifact(self, artifact: ArtifactRecord, store: Store) -> bool:
        """Copy an artifact into a store; False if it is incomplete, or does not match its digest."""
        if find_fault(artifact):
            return False
        if store.is_intact(artifact):
            return True
        with store.building() as folder:
            built = folder / "pulled"
            try:
                pulled = all(self._get(artifact, file, built / file.path) for file in artifact.files)
            except OSError:  # names that a file system cannot have together, such as `a` and `a/b`
                pulled = False
            if pulled and store.keep(artifact.kind, built).digest == artifact.digest:
                return True
        self.damaged.add(artifact.digest)
        return False

    def push_artifact(self, artifact: ArtifactRecord, store: Store) -> None:
        """Write an artifact of a store, unless it already exists."""
        for file in artifact.files:
            place = self._object(artifact, file)
            if artifact.digest in self.damaged or self._size(place) != file.size_bytes:
                with self._writing(place) as aside:
                    self._place[0].put_file(str(store.object_folder(artifact.digest) / file.path), aside)
        self.damaged.discard(artifact.digest)

    def list_files(self, folder: str) -> list[RemoteFile]:
        """Return all files below a folder, such as `records`."""
        system, root = self._place
        with self._explaining("cannot be listed"):
            system.invalidate_cache()
            try:
                found = system.find(f"{root}/{folder}", detail=True)
            except FileNotFoundError:
                return []
        return [
            RemoteFile(path, path.partition(f"{root}/{folder}/")[2], int(facts["size"]), _modified(facts))
            for path, facts in found.items()
        ]

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files; others may have removed them meanwhile."""
        with self._explaining("cannot be changed"):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._place[0].rm_file(path)

    def import_library(self) -> None:
        """Import the library of the URL's protocol, which may take a second."""
        from fsspec import get_filesystem_class

        with self._explaining("cannot be opened"):
            get_filesystem_class(self.url.partition("://")[0])

    def connect(self) -> None:
        """Open the URL."""
        _ = self._place

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """Return the file system, and the URL's path on it."""
        from fsspec.core import url_to_fs

        with self._explaining("cannot be opened"):
            system, root = url_to_fs(self.url)
            root = root.rstrip("/")
        return (LinklessFolder(root) if SUPPORTED and "file" in _protocols(system) else system), root

    def _object(self, artifact: ArtifactRecord, file: ArtifactFile) -> str:
        return f"{self._place[1]}/objects/{artifact.digest[:2]}/{artifact.digest}/{file.path}"

    def _record(self, key: str) -> str:
        return f"{self._place[1]}/records/{key[:2]}/{key}.json"

    def read_record(self, key: str) -> StepRecord | None:
        """Return the record under a key, in one request; None if it is missing, damaged, not that of the key, or of
        another version."""
        try:
            return self.read_known_record(key)
        except FormatError:
            self.other_versions.add(key)
            return None

    def read_known_record(self, key: str) -> StepRecord | None:
        """Return the record under a key as `read_record` does. Raises FormatError for one of another version."""
        try:
            record = StepRecord.model_validate_json(unseal(self._read_bounded(self._record(key))))
        except (FileNotFoundError, ValueError):
            return None
        # Terminals show these texts: a stranger's must not control them.
        plain = all(text == visible_name(text) for text in (record.summary, *record.metrics, *record.parents))
        # Not all protocols' libraries take these characters literally.
        literal = not any(character in file.path for file in record.artifact.files for character in ':"<>|?*')
        return record if record.key == key and plain and literal and not find_record_fault(record) else None

    def read_artifact_digest(self, key: str) -> str:
        """Return the digest of the artifact that a record of another version names; empty if there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            tree = from_json(unseal(self._read_bounded(self._record(key))))
            artifact = tree.get("artifact")
            if isinstance(artifact, dict) and isinstance(artifact.get("digest"), str):
                return str(artifact["digest"])
        return ""

    def _read_bounded(self, place: str) -> bytes:
        """Return the bytes of a remote file. Raises FileNotFoundError, and ValueError for a file that is too large."""
        system = self._place[0]
        with self._explaining("cannot be read", FileNotFoundError):
            system.invalidate_cache()  # others write there too
            try:
                data = bytes(system.cat_file(place, start=0, end=MAX_RECORD_BYTES + 1))
            except OSError:  # S3 refuses a range of an empty file
                if int(system.info(place)["size"]):
                    raise
                data = b""
        if len(data) > MAX_RECORD_BYTES:
            raise ValueError("the record is too large")
        return data

    def _get(self, artifact: ArtifactRecord, file: ArtifactFile, target: Path) -> bool:
        place = self._object(artifact, file)
        if self._size(place) != file.size_bytes:
            return False  # never download more than the record declares
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._explaining("cannot be read"):
            self._place[0].get_file(place, str(target))
        return True

    def _size(self, place: str) -> int | None:
        """Return the size of a remote file in bytes; None if it does not exist."""
        with self._explaining("cannot be read"):
            self._place[0].invalidate_cache()
            try:
                found = self._place[0].info(place)
            except FileNotFoundError:
                return None
            return int(found["size"]) if found["type"] == "file" else None

    def _put_record(self, record: StepRecord) -> None:
        place = self._record(record.key)
        try:
            self.read_known_record(record.key)
        except FormatError:
            return  # it is neither damaged nor ours to replace
        # When two processes write a first record at once, one wins, if the protocol supports it.
        mode = "create" if self._size(place) is None else "overwrite"
        with self._writing(place) as aside, contextlib.suppress(FileExistsError):
            self._place[0].pipe_file(aside, seal(record.to_json()).encode(), mode=mode)

    @contextlib.contextmanager
    def _writing(self, place: str) -> Iterator[str]:
        """Yield the path to write to, so that an incomplete file is never seen at `place`."""
        system = self._place[0]
        with self._explaining("cannot be written"):
            if _protocols(system) & _SHOWS_WHOLE_FILES:
                yield place
                return
            folder, _, name = place.rpartition("/")
            aside = f"{folder}/.{name}.{uuid4().hex[:8]}"
            if not isinstance(system, LinklessFolder):  # which creates folders by itself
                system.makedirs(folder, exist_ok=True)
            try:
                yield aside
                system.mv(aside, place)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(aside)
                raise

    @contextlib.contextmanager
    def _explaining(self, what: str, *passed: type[Exception]) -> Iterator[None]:
        """Turn errors of the protocols' libraries, some of which contain the URL, into BackendError; not `passed`."""
        try:
            yield
        except passed:
            raise
        except ImportError as error:
            raise BackendError(f"cache {self}: {error}.") from None
        except Exception as error:
            reason = visible_name(self._credentials.hide(f"{type(error).__name__}: {error}"))
            raise BackendError(f"cache {self}: {what}: {reason}. Check its URL and your permissions.") from None


def _protocols(system: Any) -> set[str]:  # noqa: ANN401
    return {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)


def _modified(facts: Mapping[str, Any]) -> float | None:
    """Return the time of a file's last change, which each protocol lists under another name."""
    for name in ("LastModified", "mtime", "last_modified", "updated", "created"):
        value = facts.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
