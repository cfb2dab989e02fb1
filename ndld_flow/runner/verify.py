"""Check every stored file against its digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ndld_flow.artifacts.digest import describe_files, digest_file
from ndld_flow.artifacts.store import Store
from ndld_flow.records.base import Record
from ndld_flow.records.step_record import ArtifactFile


class Verified(Record):
    """What a full check of the store found."""

    object_count: int
    checked_bytes: int
    damaged: tuple[str, ...]
    """Digests of objects whose files are not what they were; they were set aside and are made again when needed."""


def verify_store(store: Store, progress: Callable[[int, int, str], None]) -> Verified:
    """Hash every object anew, trusting nothing remembered, and set aside what differs."""
    folders = sorted((store.root / "objects").glob("*/*"))
    damaged, checked_bytes = [], 0
    for index, folder in enumerate(folders):
        progress(index, len(folders), folder.name[:16])
        digest, size_bytes = _digest_folder(folder)
        checked_bytes += size_bytes
        if digest != folder.name:
            damaged.append(folder.name)
            store.set_aside(folder.name)
    progress(len(folders), len(folders), "done")
    return Verified(object_count=len(folders), checked_bytes=checked_bytes, damaged=tuple(damaged))


def _digest_folder(folder: Path) -> tuple[str, int]:
    files = [
        ArtifactFile(path=path.relative_to(folder).as_posix(), digest=digest_file(path), size_bytes=path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    artifact = describe_files("any", files)
    return artifact.digest, artifact.size_bytes
