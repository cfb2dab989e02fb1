"""Remove results from a shared cache, by age and size, while others push and pull.

Records are removed first, so that no record names an artifact that is gone. Then the artifacts that no record names are
removed, if they are older than a grace period: a push writes an artifact before its record. A push that finds its
artifact there just before it is removed leaves a record without it, which is ignored, and repaired by the next push.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ndld_flow.base.errors import FormatError, RequestError
from ndld_flow.base.quantities import parse_bytes, parse_duration_ms
from ndld_flow.records.document import Record
from ndld_flow.runner.cache_settings import CACHE_VARIABLE, PROJECT_FILE, CacheChoice, choose_cache
from ndld_flow.store.remote_store import RemoteFile, RemoteStore

GRACE_S = 24 * 3600.0
"""Minimum age at which artifacts without a record, and unreadable files, are removed: a push may be at work."""
_THREADS = 16


class CacheFreed(Record):
    """Everything that `gc --cache` removed, or would remove."""

    cache: str
    """The cache's URL, without credentials."""
    record_count: int
    """Number of results that were removed."""
    object_count: int
    """Number of artifacts that were removed."""
    freed_bytes: int
    kept_record_count: int
    other_version_count: int
    """Number of results of other versions of ndld-flow among these: they are kept, whatever their age."""
    kept_bytes: int
    dry_run: bool


@dataclass(frozen=True)
class _Entry:
    """A record in the cache."""

    file: RemoteFile
    artifact: str
    """Digest of its artifact; empty if the record is damaged."""
    of_other_version: bool = False


def collect_cache(
    remote: RemoteStore, *, max_bytes: int | None = None, max_age_s: float | None = None, dry_run: bool = False
) -> CacheFreed:
    """Remove results older than `max_age_s`, then the oldest until the rest has at most `max_bytes`.

    The age of a result is the time since it was pushed. Results of other versions stay. Raises BackendError if the
    cache cannot be read or changed, and RequestError if it does not list times.
    """
    now_s = time.time()
    entries = _read_entries(remote)
    objects = _list_objects(remote)
    dropped = _choose(entries, objects, now_s, max_bytes, max_age_s)
    remote.remove_files(() if dry_run else [entry.file.path for entry in dropped])
    gone = {entry.file.path for entry in dropped}
    kept = [entry for entry in (entries if dry_run else _read_entries(remote)) if entry.file.path not in gone]
    named = {entry.artifact for entry in kept}
    unused = {
        digest: files
        for digest, files in objects.items()
        if digest not in named and all(_is_older(file, now_s - GRACE_S) for file in files)
    }
    remote.remove_files(() if dry_run else [file.path for files in unused.values() for file in files])
    removed = [*(entry.file for entry in dropped), *(file for files in unused.values() for file in files)]
    whole = [*(entry.file for entry in entries), *(file for files in objects.values() for file in files)]
    freed_bytes = sum(file.size_bytes for file in removed)
    return CacheFreed(
        cache=str(remote),
        record_count=len(dropped),
        object_count=len(unused),
        freed_bytes=freed_bytes,
        kept_record_count=len(kept),
        other_version_count=sum(entry.of_other_version for entry in kept),
        kept_bytes=sum(file.size_bytes for file in whole) - freed_bytes,
        dry_run=dry_run,
    )


def collect_configured_cache(
    cache: str | None, max_size: str | None, max_age: str | None, *, dry_run: bool
) -> CacheFreed:
    """Run `collect_cache` with limits as text, on this cache or that of the settings. Raises RequestError also for
    invalid limits, and without a cache."""
    try:
        max_bytes = None if max_size is None else parse_bytes(max_size)
        max_age_s = None if max_age is None else parse_duration_ms(max_age) / 1e3
    except ValueError as error:
        raise RequestError(f"gc --cache: {error}") from None
    settings = choose_cache(CacheChoice(cache))
    if settings is None:
        raise RequestError(f"there is no cache: name one with --cache URL, in {CACHE_VARIABLE}, or in {PROJECT_FILE}.")
    return collect_cache(RemoteStore(settings.url), max_bytes=max_bytes, max_age_s=max_age_s, dry_run=dry_run)


def _read_entries(remote: RemoteStore) -> list[_Entry]:
    files = remote.list_files("records")

    def read(file: RemoteFile) -> _Entry:
        key = file.name.removesuffix(".json")
        try:
            record = remote.read_known_record(key)
        except FormatError:
            return _Entry(file, remote.read_artifact_digest(key), of_other_version=True)
        return _Entry(file, record.artifact.digest if record is not None else "")

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


def _list_objects(remote: RemoteStore) -> Mapping[str, list[RemoteFile]]:
    """Return digest -> files of its artifact."""
    objects: dict[str, list[RemoteFile]] = defaultdict(list)
    for file in remote.list_files("objects"):
        if file.modified_s is None:
            raise RequestError(f"cache {remote}: it does not list the times of files, so their ages are not known.")
        _, _, digest = file.inner.rpartition("/")[0].partition("/")
        objects[digest.partition("/")[0]].append(file)
    return objects


def _choose(
    entries: Iterable[_Entry],
    objects: Mapping[str, Sequence[RemoteFile]],
    now_s: float,
    max_bytes: int | None,
    max_age_s: float | None,
) -> list[_Entry]:
    """Return the records to remove: damaged ones, old ones, then the oldest beyond the size limit."""
    dropped: list[_Entry] = []
    kept: list[_Entry] = []
    for entry in sorted(entries, key=lambda entry: entry.file.modified_s or now_s):
        limit_s = None if entry.of_other_version else max_age_s if entry.artifact else GRACE_S
        old = limit_s is not None and _is_older(entry.file, now_s - limit_s)
        (dropped if old else kept).append(entry)
    if max_bytes is None:
        return dropped
    uses = Counter(entry.artifact for entry in kept if entry.artifact)
    sizes = {digest: sum(file.size_bytes for file in objects.get(digest, ())) for digest in uses}
    total_bytes = sum(sizes.values()) + sum(entry.file.size_bytes for entry in kept)
    for entry in kept:
        if total_bytes <= max_bytes or entry.of_other_version or not entry.artifact:
            continue
        dropped.append(entry)
        uses[entry.artifact] -= 1
        last = not uses[entry.artifact]
        total_bytes -= entry.file.size_bytes + (sizes[entry.artifact] if last else 0)
    return dropped


def _is_older(file: RemoteFile, time_s: float) -> bool:
    return file.modified_s is not None and file.modified_s < time_s
