"""Check every stored file against its digest."""

from __future__ import annotations

from collections.abc import Callable

from ndld_flow.artifacts.digest import describe_folder
from ndld_flow.artifacts.store import Store
from ndld_flow.records.base import Record


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
        found = describe_folder("any", folder)
        checked_bytes += found.size_bytes
        if found.digest != folder.name:
            damaged.append(folder.name)
            store.set_aside(folder.name)
    progress(len(folders), len(folders), "done")
    return Verified(object_count=len(folders), checked_bytes=checked_bytes, damaged=tuple(damaged))
