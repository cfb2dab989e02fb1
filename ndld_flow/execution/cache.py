"""The shared cache of a run: look up the records of its steps, fetch their artifacts, and push new ones.

A cache only saves time. Look-ups of all steps whose keys are known run at the same time, one request for each; what is
slow, unreachable or damaged costs a bounded wait and one warning, and the steps are computed.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ndld_flow.base.errors import BackendError, FormatError, RequestError
from ndld_flow.base.quantities import parse_bytes, parse_duration_ms, seconds
from ndld_flow.execution.daemon_threads import DaemonThreads
from ndld_flow.execution.events import Notice
from ndld_flow.execution.keys import HIDDEN_VALUES
from ndld_flow.execution.listener import Listener
from ndld_flow.machine.host import UNKNOWN_HOST, Reuse, describe_place
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runs.cache_settings import CACHE_VARIABLE, PROJECT_FILE, CacheChoice, CacheSettings, choose_cache
from ndld_flow.store.remote_store import RemoteFile, RemoteStore
from ndld_flow.store.store import Store

THREADS = 16
LEAST_BYTES_PER_S = 1e6
"""A transfer that is slower than this is given up."""


T = TypeVar("T")


class Cache:
    """A shared cache, as one run or plan uses it."""

    def __init__(self, settings: CacheSettings, store: Store, listener: Listener, *, looks_only: bool = False) -> None:
        """`looks_only`: nothing is fetched or pushed, for plans."""
        self.settings = settings
        self.remote = RemoteStore(settings.url)
        self._store, self._listener, self._looks_only = store, listener, looks_only
        self._wait_s = self._patience_s = settings.wait / 1e3
        self._asked: dict[str, Future[StepRecord | None]] = {}
        self._refused: set[str] = set()
        self._pushed: set[str] = set()
        """Keys of records that `push` has already pushed."""
        self._threads = DaemonThreads(THREADS)
        self._connected = self._given_up = self._warned_of_versions = False

    def ask(self, keys: Iterable[str]) -> None:
        """Start to look up the records of these keys, all at the same time."""
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        if new and self._connect():
            for key in new:
                self._asked[key] = self._threads.submit(partial(self.remote.read_record, key))

    def find(self, keys: Sequence[str]) -> list[StepRecord] | None:
        """Return the records of steps that ran together; None if the cache does not have them, or gives no answer."""
        self.ask(keys)
        if self._given_up or not self._refused.isdisjoint(keys):
            return None
        started, records = time.monotonic(), list[StepRecord | None]()
        with self._giving_up(f"it gave no answer that helps within {seconds(self._wait_s)}."):
            records = [self._await(self._asked[key], started + self._patience_s) for key in keys]
        if self._given_up:
            return None
        if self.remote.other_versions and not self._warned_of_versions:
            self._warned_of_versions = True
            self._warn(f"cache {self.remote}: it has results of another version of ndld-flow, which are not used")
        found = self.remote.match(records)
        self._patience_s = self._wait_s if found else max(self._patience_s - (time.monotonic() - started), 0.0)
        return found

    def fetch(self, records: Sequence[StepRecord]) -> bool:
        """Copy the artifacts of records into the store; False if one is damaged, or does not arrive in time."""
        artifacts = {record.artifact.digest: record.artifact for record in records}
        if self._looks_only or all(map(self._store.is_intact, artifacts.values())):
            return True
        if self._given_up:
            return False
        deadline = self._deadline(artifacts.values())
        tasks = {
            digest: self._threads.submit(partial(self.remote.pull_artifact, artifact, self._store))
            for digest, artifact in artifacts.items()
        }
        arrived: dict[str, bool] = {}
        with self._giving_up(f"it sends less than {LEAST_BYTES_PER_S / 1e6:g} MB a second."):
            arrived = {digest: self._await(task, deadline) for digest, task in tasks.items()}
        if self._given_up:
            return False
        for digest in (digest for digest, came in arrived.items() if not came):
            self._warn(f"cache {self.remote}: the artifact {digest[:12]} is incomplete or damaged, and is not used")
        return all(arrived.values())

    def take(self, records: Sequence[StepRecord]) -> bool:
        """Copy records and their artifacts into the store; False if that fails, and `find` returns None afterwards."""
        if not self.fetch(records):
            self._refused |= {record.key for record in records}
            return False
        for record in () if self._looks_only else records:
            self._store.write_record(record)
        return True

    def push(self, records: Iterable[StepRecord]) -> None:
        """Add the results of a run that the cache does not have, if the user allows it."""
        if not self.settings.push or self._looks_only:
            return
        new = [record for record in records if record.key not in self._pushed]
        # Another store cannot have the key of hidden values or an unknown host, nor are results of another run as good.
        shareable = [
            record
            for record in new
            if HIDDEN_VALUES not in record.parts.reads
            and UNKNOWN_HOST not in record.parts.machine
            and not self._has(record)
        ]
        # A step that ran alone is a group.
        sessions: dict[object, list[StepRecord]] = {}
        for record in shareable:
            sessions.setdefault(record.started_at if record.parts.together else record.key, []).append(record)
        groups = list(sessions.values())
        if not groups or not self._connect():
            return
        deadline = self._deadline(record.artifact for record in shareable)
        try:
            tasks = [self._threads.submit(partial(self._push_missing, group)) for group in groups]
            for task in tasks:
                self._await(task, deadline)
            self._pushed |= {record.key for record in shareable}
        except FutureTimeoutError:
            self._warn(f"cache {self.remote}: it receives too slowly. Not all results were pushed: run again")
        except BackendError as error:
            self._warn(f"{error} Results were not pushed")

    def close(self) -> None:
        """End the threads that are not at work."""
        self._threads.close()

    def machine_of(self, step: RecipeStep) -> str:
        """Return the properties of this machine that are part of a step's key: if the user allows it, those of its
        kind."""
        where = step.step.reused_where()
        if where is Reuse.ANYWHERE:
            return ""
        if where is Reuse.THIS_HOST and self.settings.machines == "same_kind":
            where = Reuse.SAME_KIND
        return describe_place(where, step.step.device)

    def _connect(self) -> bool:
        """Import the protocol's library, and open the URL; False once the cache was given up."""
        if self._given_up or self._connected:
            return not self._given_up
        with self._giving_up(f"there is no connection within {seconds(self._wait_s)}."):
            self.remote.import_library()  # not in a thread: this is not the cache's delay
            self._await(self._threads.submit(self.remote.connect), time.monotonic() + self._wait_s)
            self._connected = True
        return self._connected

    def _has(self, record: StepRecord) -> bool:
        """Return whether the cache is known to have a record, with an intact artifact."""
        asked = self._asked.get(record.key)
        known = asked is not None and asked.done() and not asked.exception() and asked.result() == record
        return known and record.artifact.digest not in self.remote.damaged

    def _push_missing(self, records: Sequence[StepRecord]) -> None:
        if all(record.key in self._asked for record in records) or not self.remote.find([r.key for r in records]):
            self.remote.push(records, self._store)

    def _deadline(self, artifacts: Iterable[ArtifactRecord]) -> float:
        size_bytes = sum(artifact.size_bytes for artifact in artifacts)
        return time.monotonic() + self._wait_s + size_bytes / LEAST_BYTES_PER_S

    def _await(self, future: Future[T], deadline: float) -> T:
        return future.result(timeout=max(deadline - time.monotonic(), 0.0))

    @contextmanager
    def _giving_up(self, slow: str) -> Iterator[None]:
        """Stop using the cache if the block raises BackendError or times out; `slow` is the warning for a timeout."""
        try:
            yield
        except (FutureTimeoutError, BackendError) as error:
            self._given_up = True
            reason = str(error) if isinstance(error, BackendError) else f"cache {self.remote}: {slow}"
            self._warn(f"{reason} The run continues without it.")

    def _warn(self, text: str) -> None:
        self._listener(Notice(text=text, warning=True))


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
