"""The shared cache of a run: look up the records of its steps, fetch their artifacts, and push new ones.

A cache only saves time. Look-ups of all steps whose keys are known run at the same time, one request for each; what is
slow, unreachable or damaged costs a bounded wait and one warning, and the steps are computed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TypeVar

from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import seconds
from ndld_flow.machine.host import UNKNOWN_HOST
from ndld_flow.machine.reuse import Reuse, describe_place
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.cache_settings import CacheSettings
from ndld_flow.runner.events import Notice
from ndld_flow.runner.keys import HIDDEN_VALUES
from ndld_flow.runner.listener import Listener
from ndld_flow.store.remote_store import RemoteStore
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
        self._threads = _DaemonThreads(THREADS)
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
        started = time.monotonic()
        try:
            records = [self._await(self._asked[key], started + self._patience_s) for key in keys]
        except FutureTimeoutError:
            self._give_up(f"cache {self.remote}: it gave no answer that helps within {seconds(self._wait_s)}.")
            return None
        except BackendError as error:
            self._give_up(str(error))
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
        try:
            arrived = {digest: self._await(task, deadline) for digest, task in tasks.items()}
        except FutureTimeoutError:
            self._give_up(f"cache {self.remote}: it sends less than {LEAST_BYTES_PER_S / 1e6:g} MB a second.")
            return False
        except BackendError as error:
            self._give_up(str(error))
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
        try:
            self.remote.import_library()  # not in a thread: this is not the cache's delay
            self._await(self._threads.submit(self.remote.connect), time.monotonic() + self._wait_s)
            self._connected = True
        except FutureTimeoutError:
            self._give_up(f"cache {self.remote}: there is no connection within {seconds(self._wait_s)}.")
        except BackendError as error:
            self._give_up(str(error))
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

    def _give_up(self, reason: str) -> None:
        self._given_up = True
        self._warn(f"{reason} The run continues without it.")

    def _warn(self, text: str) -> None:
        self._listener(Notice(text=text, warning=True))


class _DaemonThreads:
    """Threads for calls that may never return: a process that exits does not wait for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """None ends a thread."""
        self._started = 0

    def close(self) -> None:
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def settle() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(settle)
        if self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, daemon=True).start()
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
