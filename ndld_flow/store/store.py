"""The store: objects by digest, one record per key, one lock per key.

::

    store/FORMAT                              the number of this layout
    store/objects/ab/abcdef.../model.onnx     an artifact's files, read-only
    store/records/ab/abcdef....json           a StepRecord with a seal, by the step's key
    store/sources/....json                    a fetched model's ArtifactRecord, by its origin
    store/locks/  store/building/.../         work in progress, and its owner
    store/caches/                             files that only save time, such as TensorRT's timing caches
    store/salt                                random bytes: without them nobody can test passwords against a key
    store/damaged/                            files that did not match their digest or seal

Everything is built in a temporary folder, synced and renamed: a killed process leaves at most a folder in `building/`,
which the next run removes. The form of the file `FORMAT` itself never changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.base.errors import BackendError, FormatError, OutputsError, RequestError
from ndld_flow.base.text import lazy_pattern
from ndld_flow.records.document import naming_file, read_bounded
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.store.digest import DigestMemory, describe_folder, digest_json, find_damage, find_fault
from ndld_flow.store.files import (
    make_folder,
    open_new_file,
    remove_folder,
    seal,
    share_tree,
    sync,
    sync_folder,
    unseal,
    write_text_atomically,
)
from ndld_flow.store.kinds import is_reserved, known_kinds
from ndld_flow.store.locks import Locks

if TYPE_CHECKING:
    from ndld_flow.records.run_record import StepRecord

_SALT_BYTES = 32


@dataclass(frozen=True)
class SetAside:
    """Damaged files that were moved away."""

    damage: str
    """A short description of the damage."""
    place: Path


@dataclass(frozen=True)
class Store:
    """Artifacts and records below one folder. Safe with any number of processes and with `kill -9`."""

    root: Path

    @property
    def digests(self) -> DigestMemory:
        return DigestMemory(self.root / "digests")

    @property
    def locks(self) -> Locks:
        return Locks(self.root / "locks")

    @property
    def caches(self) -> Path:
        return self.root / "caches"

    def digest_hidden(self, value: JsonValue) -> str:
        """Return a digest of a value that contains secrets, which cannot be guessed without this store's salt.

        Another store has another salt, so records and run folders, which are shared, reveal nothing.
        """
        return blake3(digest_json(value).encode(), key=self._salt()).hexdigest()

    def _salt(self) -> bytes:
        path = self.root / "salt"
        salt = _read_salt(path)
        if not salt:
            with self.locks.hold("salt"):
                salt = _read_salt(path)
                if not salt:
                    salt = os.urandom(_SALT_BYTES)
                    self._write_salt(path, salt)
        return salt

    def _write_salt(self, path: Path, salt: bytes) -> None:
        """Write the salt, readable for all users who may write into the store: they compute keys with it."""
        root = self.root.stat()
        may_write = root.st_mode & 0o222
        aside = path.with_name(f".salt.{uuid4().hex[:8]}")
        with os.fdopen(open_new_file(aside, may_write | may_write << 1 | 0o600), "wb") as file:
            with contextlib.suppress(OSError, AttributeError):  # not every system has groups
                os.fchown(file.fileno(), -1, root.st_gid)
            file.write(salt)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def object_folder(self, digest: str) -> Path:
        """Return the folder of an artifact by its digest; it may not exist."""
        return self.root / "objects" / digest[:2] / digest

    def record_path(self, key: str) -> Path:
        return self.root / "records" / key[:2] / f"{key}.json"

    def read_record(self, key: str) -> StepRecord | None:
        """Return the record of a key; None if it is missing or unreadable, and must be recomputed.

        Raises FormatError for one of another version, which must not be replaced.
        """
        return self._examine_record(key)[0]

    def _examine_record(self, key: str) -> tuple[StepRecord | None, str]:
        """Return the record of a key, or the reason why there is none, in a few words."""
        path = self.record_path(key)
        try:
            text = unseal(read_bounded(path))
        except (OSError, ValueError):
            return None, "its record cannot be read"
        from ndld_flow.records.run_record import StepRecord

        try:
            with naming_file(path):
                record = StepRecord.model_validate_json(text)
        except ValueError:
            return None, "its record cannot be read"
        fault = "its record is that of another key" if record.key != key else find_record_fault(record)
        return (None, fault) if fault else (record, "")

    def write_record(self, record: StepRecord) -> None:
        """Write the record of a step. Raises BackendError for one that cannot be that of its key."""
        fault = find_record_fault(record)
        if fault:
            raise BackendError(f"the result of `{record.parts.step}` is refused: {fault}.")
        self.locks.use([record.key])
        path = self.record_path(record.key)
        if path.is_dir():  # a rename cannot replace it
            self._move_away(path)
        write_text_atomically(path, seal(record.to_json()))

    def is_intact(self, artifact: ArtifactRecord) -> bool:
        """Return whether all files of an artifact exist with their original contents."""
        return not self.find_damage(artifact)

    def find_damage(self, artifact: ArtifactRecord) -> str:
        """Return the damage of an artifact's files, in a few words; empty if there is none."""
        fault = find_fault(artifact)
        if fault:
            return fault
        folder = self.object_folder(artifact.digest)
        for file in artifact.files:
            damage = find_damage(folder / file.path, file, self.digests.digest)
            if damage:
                return f"{file.path}: {damage}" if folder.is_dir() else "it is no longer in the store"
        return ""

    def find_broken_record(self, key: str) -> str:
        """Return the damage of a key's record, in a few words; empty if there is no record, or no damage."""
        return self._examine_record(key)[1] if os.path.lexists(self.record_path(key)) else ""

    def clear(self, key: str, fault: str = "") -> SetAside | None:
        """Move the damaged part of a key's result away: its record, or the artifact that it names.

        `fault`: why its record cannot be that of the key, if the caller knows.
        """
        broken = fault or self.find_broken_record(key)
        if broken:
            return SetAside(broken, self._move_away(self.record_path(key)))
        record = self.read_record(key)
        return self._clear(record.artifact) if record is not None else None

    def _clear(self, artifact: ArtifactRecord) -> SetAside | None:
        damage = self.find_damage(artifact)
        place = self.set_aside(artifact.digest) if damage else None
        return SetAside(damage, place) if place is not None else None

    def keep(self, kind: str, built: Path, report: Callable[[str], None] = lambda _: None) -> ArtifactRecord:
        """Move a folder's contents into the store under their digest; `built` no longer exists afterwards.

        `report` is called about a damaged object under the same digest. Raises OSError.
        """
        try:
            artifact = describe_folder(kind, built, self.digests.digest)
        except ValueError:
            raise RequestError(
                "a result has a file whose name not every system can have: with a backslash, a drive, or too long."
            ) from None
        folder = self.object_folder(artifact.digest)
        self.locks.use([artifact.digest])
        if folder.exists() and self.is_intact(artifact):
            remove_folder(built)
            return artifact
        damaged = self._clear(artifact)
        if damaged is not None:
            report(f"set aside: the stored result was damaged ({damaged.damage}); it is kept in {damaged.place}")
        for file in artifact.files:
            path = built / file.path
            with contextlib.suppress(OSError):  # not every file system has permissions
                path.chmod(path.stat().st_mode & 0o444)  # readers depend on the user's umask
        share_tree(built, self.root)
        sync_folder(built)
        if not folder.parent.exists():
            make_folder(folder.parent)
            sync(folder.parent.parent)
        try:
            built.rename(folder)
        except OSError:
            if not self.is_intact(artifact):  # otherwise another process has just stored the same contents
                raise
        sync(folder.parent)
        remove_folder(built)
        return artifact

    def set_aside(self, digest: str, hash_file: Callable[[Path], str] | None = None) -> Path | None:
        """Move an object to `damaged/` if it is damaged; return its new path."""
        folder = self.object_folder(digest)
        with self.locks.hold("damaged"):  # another process may have replaced it by an intact one
            if not os.path.lexists(folder) or self._matches_digest(folder, hash_file or self.digests.digest):
                return None
            return self._move_away(folder)

    def _matches_digest(self, folder: Path, hash_file: Callable[[Path], str]) -> bool:
        try:
            return describe_folder("any", folder, hash_file).digest == folder.name
        except (OSError, ValueError):
            return False

    def _move_away(self, path: Path) -> Path:
        """Move a file or folder into `damaged/`."""
        damaged = self.root / "damaged" / f"{time.strftime('%Y%m%d-%H%M%S')}-{path.name[:16]}-{uuid4().hex[:6]}"
        make_folder(damaged.parent)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            path.rename(damaged)
        return damaged

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """Yield an empty folder on the store's disk, removed afterwards, and by the next run after a `kill -9`."""
        folder = self.root / "building" / uuid4().hex[:12]
        with self.locks.lease("building", folder.name):
            make_folder(folder)
            try:
                yield folder
            finally:
                remove_folder(folder)

    def sweep_building(self) -> None:
        """Remove the leftovers of killed processes."""
        self.locks.sweep_lists()
        with self.locks.leases("building") as alive:
            for folder in (self.root / "building").glob("*"):
                if folder.name not in alive:
                    remove_folder(folder)


def find_record_fault(record: StepRecord) -> str:
    """Return why a record cannot be that of its key, in a few words; empty if it can.

    Callers that know the step also compare the artifact with its kind.
    """
    if record.key != digest_json(record.parts.model_dump(mode="json")):
        return "its key is not that of its parts"
    fault = find_fault(record.artifact)
    if fault:
        return f"the artifact of its record: {fault}"
    names = {file.path for file in record.artifact.files}
    main = next((kind.main for kind in known_kinds() if kind.kind == record.artifact.kind), None)
    if main is not None and main not in names:
        return f"the artifact of its record has no {main}"
    return "its artifact has a file that belongs to the run" if any(map(is_reserved, names)) else ""


def _read_salt(path: Path) -> bytes:
    """Return the salt of a store; empty if it is missing or incomplete. Raises OutputsError."""
    try:
        salt = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise OutputsError(
            f"{path} cannot be read: {error.strerror}. Keys of settings with credentials depend on it. Make "
            "it readable for all users of this store, or remove it, which discards their results."
        ) from None
    return salt if len(salt) == _SALT_BYTES else b""


FORMAT = 1
FORMAT_FILE = "FORMAT"

# The number is written twice: if they differ, the file is damaged and counts as unreadable.
_WRITTEN = lazy_pattern(r"(\d{1,4})\n[^\n]* format \1 [^\n]*\n", re.ASCII)
_LONGEST = 1_000


def mark_store(root: Path) -> None:
    """Write the format of a new store, or of one without a readable format. Raises OSError."""
    if _read_format(root) is None:
        note = f"A store of ndld-flow, format {FORMAT} (results by digest). Manage it with ndld-flow: verify, gc, runs."
        write_text_atomically(root / FORMAT_FILE, f"{FORMAT}\n{note}\n")


def refuse_other_store(root: Path) -> None:
    """Raise FormatError for a store of another version."""
    version = _read_format(root)
    if version is not None and version != FORMAT:
        raise FormatError.of(f"the store {root}", version, FORMAT)


def _read_format(root: Path) -> int | None:
    """Return the format of a store; None if it is missing or unreadable."""
    try:
        with (root / FORMAT_FILE).open("rb") as file:
            text = file.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return None
    written = _WRITTEN.fullmatch(text)
    return int(written[1]) if written else None
