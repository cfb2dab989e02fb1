"""A store on another machine or in a bucket, reached through fsspec and laid out like a store's folder.

::

    URL/objects/ab/abcdef.../model.onnx     an artifact's files
    URL/records/ab/abcdef....json           a StepRecord with a seal, by the step's key

Files are written first and the record last, so an existing record has its artifact. If a protocol shows incomplete
files, a file is written under another name and moved. Nothing from a remote store is trusted: data that does not match
its digest, or its key, counts as missing, and the next push writes it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import visible_name
from ndld_flow.records.run_record import ArtifactFile, ArtifactRecord, StepRecord
from ndld_flow.store.digest import describe_files, digest_json
from ndld_flow.store.files import seal, unseal
from ndld_flow.store.hidden_credentials import Credentials
from ndld_flow.store.store import Store

_SHOWS_WHOLE_FILES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Protocols that never show incomplete files, and can avoid replacing one."""


class RemoteStore:
    """Records and artifacts below a URL. Any number of machines may push and pull at once.

    Every method raises `BackendError` when the URL cannot be reached, read or written.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.damaged: set[str] = set()
        """Digests of artifacts that are damaged there: the next push writes them again."""
        self._credentials = Credentials(url)

    def __str__(self) -> str:
        """Return the URL without credentials."""
        return self._credentials.hide(self.url)

    def pull(self, keys: Sequence[str], store: Store) -> list[StepRecord] | None:
        """Copy the records of steps that ran together, and their artifacts, into a store.

        Returns None, and writes no record, when one is missing or damaged.
        """
        records = self.find(keys)
        if records is None or not all(self.pull_artifact(record.artifact, store) for record in records):
            return None
        for record in records:
            store.write_record(record)
        return records

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
        records = [record for record in map(self._read_record, keys) if record is not None]
        whole = len(records) == len(keys) and self.damaged.isdisjoint(record.artifact.digest for record in records)
        return records if whole and len({record.started_at for record in records}) == 1 else None

    def pull_artifact(self, artifact: ArtifactRecord, store: Store) -> bool:
        """Copy an artifact into a store; False if it is incomplete, or does not match its digest."""
        if not _is_valid(artifact):
            return False
        if store.is_intact(artifact):
            return True
        with store.building() as folder:
            built = folder / "pulled"
            pulled = all(self._get(artifact, file, built / file.path) for file in artifact.files)
            if pulled and store.keep(artifact.kind, built).digest == artifact.digest:
                return True
        self.damaged.add(artifact.digest)
        return False

    def push_artifact(self, artifact: ArtifactRecord, store: Store) -> None:
        """Write an artifact of a store, unless it already exists."""
        for file in artifact.files:
            place = self._object(artifact, file)
            if artifact.digest in self.damaged or self._size(place) != file.size_bytes:
                self._put(store.object_folder(artifact.digest) / file.path, place)
        self.damaged.discard(artifact.digest)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """Return the file system, and the URL's path on it."""
        from fsspec.core import url_to_fs

        with self._explaining("cannot be opened"):
            system, root = url_to_fs(self.url)
        return system, root.rstrip("/")

    def _object(self, artifact: ArtifactRecord, file: ArtifactFile) -> str:
        return f"{self._place[1]}/objects/{artifact.digest[:2]}/{artifact.digest}/{file.path}"

    def _record(self, key: str) -> str:
        return f"{self._place[1]}/records/{key[:2]}/{key}.json"

    def _read_record(self, key: str) -> StepRecord | None:
        system, place = self._place[0], self._record(key)
        with self._explaining("cannot be read"):
            system.invalidate_cache()  # others write there too
            try:
                record = StepRecord.model_validate_json(unseal(system.cat_file(place)))
            except (FileNotFoundError, ValueError):
                return None
        has_key = record.key == key == digest_json(record.parts.model_dump(mode="json"))
        return record if has_key and _is_valid(record.artifact) else None

    def _get(self, artifact: ArtifactRecord, file: ArtifactFile, target: Path) -> bool:
        place = self._object(artifact, file)
        if self._size(place) != file.size_bytes:
            return False  # never download more than the record allows
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._explaining("cannot be read"):
            self._place[0].get_file(place, str(target))
        return True

    def _size(self, place: str) -> int | None:
        """Return the size of a remote file in bytes; None if it does not exist."""
        with self._explaining("cannot be read"):
            self._place[0].invalidate_cache()
            try:
                return int(self._place[0].info(place)["size"])
            except FileNotFoundError:
                return None

    def _put(self, path: Path, place: str) -> None:
        with self._writing(place) as aside:
            self._place[0].put_file(str(path), aside)

    def _put_record(self, record: StepRecord) -> None:
        place = self._record(record.key)
        # When two processes write a first record at once, one wins, if the protocol supports it.
        mode = "create" if self._size(place) is None else "overwrite"
        with self._writing(place) as aside, contextlib.suppress(FileExistsError):
            self._place[0].pipe_file(aside, seal(record.to_json()).encode(), mode=mode)

    @contextlib.contextmanager
    def _writing(self, place: str) -> Iterator[str]:
        """Yield the path to write to, so that an incomplete file is never seen at `place`."""
        system = self._place[0]
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        with self._explaining("cannot be written"):
            if protocols & _SHOWS_WHOLE_FILES:
                yield place
                return
            folder, _, name = place.rpartition("/")
            system.makedirs(folder, exist_ok=True)
            aside = f"{folder}/.{name}.{uuid4().hex[:8]}"
            try:
                yield aside
                system.mv(aside, place)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(aside)
                raise

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """Turn errors of the protocols' libraries, some of which contain the URL, into BackendError."""
        try:
            yield
        except ImportError as error:
            raise BackendError(f"remote store {self}: {error}.") from None
        except Exception as error:
            reason = visible_name(self._credentials.hide(f"{type(error).__name__}: {error}"))
            raise BackendError(f"remote store {self}: {what}: {reason}. Check its URL and your permissions.") from None


def _is_valid(artifact: ArtifactRecord) -> bool:
    """Return whether an artifact's digest is that of its files, and their paths stay in its folder."""
    described = describe_files(artifact.kind, artifact.files)
    return described.digest == artifact.digest and all(_is_safe(file.path) for file in artifact.files)


def _is_safe(name: str) -> bool:
    """Return whether an untrusted path is a plain relative path, on Windows too."""
    parts = PurePosixPath(name).parts
    return bool(parts) and ".." not in parts and not name.startswith("/") and not any(c in name for c in '\\:\0"<>|?*')
