"""How a task and what it makes reach Ray's nodes and come back: a folder that all see, or a remote store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Protocol
from uuid import uuid4

from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.executors.carried_files import carry_files
from ndld_flow.runner.executors.compute import find_records
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.executors.ray_words import Mirror, NodeOrder, NodeQuestion
from ndld_flow.runner.keys import make_key
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store

SEEN_WITHIN_S = 90.0
"""Network file systems may take a minute until one machine sees what another has written."""


class Way(Protocol):
    """Between the driver's store and the nodes."""

    def ask(self, store: Store) -> NodeQuestion:
        """What to ask each node before it is given anything."""

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        """What a node is told. What the task reads can be read there afterwards."""

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        """What a node has finished, whether its answer came or not."""

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        """Have what a node made in the driver's store; False when it did not arrive whole."""

    def distrust(self, digests: Sequence[str]) -> None:
        """What a node could not read is sent anew with the next order."""

    def close(self) -> None:
        """Leave nothing behind."""


class SharedFolder:
    """All nodes see the store under its path, and the locks in it."""

    def __init__(self) -> None:
        self._witnesses: dict[Store, str] = {}
        self._leases = contextlib.ExitStack()

    def ask(self, store: Store) -> NodeQuestion:
        if store not in self._witnesses:
            name = uuid4().hex[:12]
            self._leases.enter_context(store.locks.lease("ray", name))
            self._witnesses[store] = f"ray-{name}"
        return NodeQuestion(store=str(store.root.absolute()), witness=self._witnesses[store])

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        order, _ = carry_files(task, store, trust=trust)
        return NodeOrder(task=order.to_line(), witness=self._witnesses[store])

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        return find_records(task.works, store)

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not all(store.is_intact(record.artifact) for record in records):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def distrust(self, digests: Sequence[str]) -> None:
        """Nothing is sent."""

    def close(self) -> None:
        self._leases.close()


class ThroughRemote:
    """Each node has a store of its own; what it needs and makes goes through a remote one."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote

    def ask(self, store: Store) -> NodeQuestion:
        return NodeQuestion(store=str(store.root.absolute()))

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        order, reads = carry_files(task, store, trust=trust)
        for artifact in reads:
            self._remote.push_artifact(artifact, store)
        mirror = Mirror(url=self._remote.url, reads=tuple(reads), damaged=tuple(sorted(self._remote.damaged)))
        return NodeOrder(task=order.to_line(), mirror=mirror)

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        return self._remote.pull([make_key(work.parts) for work in task.works], store)

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        if not all(self._remote.pull_artifact(record.artifact, store) for record in records):
            return False
        for record in records:
            store.write_record(record)
        return True

    def distrust(self, digests: Sequence[str]) -> None:
        self._remote.damaged |= set(digests)

    def close(self) -> None:
        """Nothing is open between calls."""
