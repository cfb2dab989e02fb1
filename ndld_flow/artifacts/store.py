"""The store: objects by digest, one record per key, one lock per key.

::

    store/objects/ab/abcdef.../model.onnx     an artifact's files, read-only
    store/records/ab/abcdef....json           a StepRecord, by the step's key
    store/sources/....json                    a fetched model's ArtifactRecord, by where it came from
    store/locks/  store/building/…/            work in progress, and whose it is
    store/caches/                             what only saves time, such as TensorRT's timing caches
    store/damaged/                            what did not match its digest, set aside

Everything is built aside, synced and renamed: a killed process leaves at most a folder in `building/`, which the next
run removes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from ndld_flow.artifacts.digest import DigestMemory, describe_folder
from ndld_flow.artifacts.files import remove_folder, sync, sync_folder, write_text_atomically
from ndld_flow.artifacts.locks import Locks
from ndld_flow.records.step_record import ArtifactRecord, StepRecord


@dataclass(frozen=True)
class Store:
    """Artifacts and records below one folder. Safe under any number of processes and under `kill -9`."""

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

    def object_folder(self, digest: str) -> Path:
        """Where the files of the artifact with this digest are, if it is there."""
        return self.root / "objects" / digest[:2] / digest

    def record_path(self, key: str) -> Path:
        return self.root / "records" / key[:2] / f"{key}.json"

    def read_record(self, key: str) -> StepRecord | None:
        """The record under a key; None when there is none, or it cannot be read (it is then made again)."""
        try:
            return StepRecord.model_validate_json(self.record_path(key).read_bytes())
        except (OSError, ValidationError):
            return None

    def write_record(self, record: StepRecord) -> None:
        write_text_atomically(self.record_path(record.key), record.to_json())

    def is_intact(self, artifact: ArtifactRecord) -> bool:
        """Whether an artifact's files are all there with the contents they had when they were stored."""
        folder = self.object_folder(artifact.digest)
        try:
            return all(
                (folder / file.path).stat().st_size == file.size_bytes
                and self.digests.digest(folder / file.path) == file.digest
                for file in artifact.files
            )
        except OSError:
            return False

    def keep(self, kind: str, built: Path) -> ArtifactRecord:
        """Move a folder's contents into the store under their digest; `built` is gone afterwards."""
        artifact = describe_folder(kind, built, self.digests.digest)
        folder = self.object_folder(artifact.digest)
        if folder.exists() and self.is_intact(artifact):
            remove_folder(built)
            return artifact
        self.set_aside(artifact.digest)
        for file in artifact.files:
            (built / file.path).chmod(0o444)
        sync_folder(built)
        if not folder.parent.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            sync(folder.parent.parent)
        # OSError: another process put the same contents there in this very moment.
        with contextlib.suppress(OSError):
            built.rename(folder)
        sync(folder.parent)
        remove_folder(built)
        return artifact

    def set_aside(self, digest: str) -> None:
        """Take a damaged object out of the way, without deleting it."""
        folder = self.object_folder(digest)
        if folder.exists():
            damaged = self.root / "damaged" / f"{time.strftime('%Y%m%d-%H%M%S')}-{digest[:16]}-{uuid4().hex[:6]}"
            damaged.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                folder.rename(damaged)

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """An empty folder on the store's disk, removed afterwards, and by the next run after a `kill -9`."""
        folder = self.root / "building" / uuid4().hex[:12]
        with self.locks.lease("building", folder.name):
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                remove_folder(folder)

    def sweep_building(self) -> None:
        """Remove what killed processes left behind."""
        with self.locks.leases("building") as alive:
            for folder in (self.root / "building").glob("*"):
                if folder.name not in alive:
                    remove_folder(folder)
