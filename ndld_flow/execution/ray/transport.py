"""Transfer of tasks and results between the driver's store and Ray's nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol
from uuid import uuid4

from pydantic import Field, TypeAdapter

from ndld_flow.execution.executor import Task, find_records
from ndld_flow.execution.keys import make_key
from ndld_flow.execution.messages import End, Line, News
from ndld_flow.execution.transfer import transfer_files
from ndld_flow.records.document import Digest
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store

SEEN_WITHIN_S = 90.0
"""Network file systems may take a minute until one machine sees what another has written."""


class Transport(Protocol):
    """Transfers tasks and results between the driver's store and the nodes."""

    def ask(self, store: Store) -> NodeQuestion:
        """Return the request for the description of a node."""

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        """Return the order for a node. The node can read the task's inputs afterwards."""

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        """Return the records of a task that a node has finished, whether its message arrived or not."""

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        """Copy a node's results into the driver's store; return False if they did not arrive completely."""

    def resend(self, digests: Sequence[str]) -> None:
        """Send artifacts that a node could not read again with the next order."""

    def close(self) -> None:
        """Release all locks."""


class SharedFolderTransport:
    """A folder that all nodes see under its path, with the locks in it."""

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
        order = transfer_files(task, store, trust=trust).order
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

    def resend(self, digests: Sequence[str]) -> None:
        """Do nothing: the nodes read the store itself."""

    def close(self) -> None:
        self._leases.close()


class RemoteTransport:
    """A store on each node; inputs and results go through a remote one."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote

    def ask(self, store: Store) -> NodeQuestion:
        return NodeQuestion(store=str(store.root.absolute()))

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        transfer = transfer_files(task, store, trust=trust)
        for artifact in transfer.artifacts:
            self._remote.push_artifact(artifact, store)
        damaged = tuple(sorted(self._remote.damaged))
        mirror = Mirror(url=self._remote.url, reads=tuple(transfer.artifacts), damaged=damaged)
        order = transfer.order.model_copy(update={"held": False})  # the locks of this machine are not those of the node
        return NodeOrder(task=order.to_line(), mirror=mirror)

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        return self._remote.pull([make_key(work.parts) for work in task.works], store)

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        if not all(self._remote.pull_artifact(record.artifact, store) for record in records):
            return False
        for record in records:
            store.write_record(record)
        return True

    def resend(self, digests: Sequence[str]) -> None:
        self._remote.damaged |= set(digests)

    def close(self) -> None:
        """Do nothing: no connection is open between calls."""


class Mirror(Line):
    """A remote store, which transfers inputs and results for nodes that do not see the driver's store and have their
    own."""

    url: str
    reads: tuple[ArtifactRecord, ...]
    damaged: tuple[Digest, ...]
    """Digests of artifacts that are damaged in the remote store."""


class NodeOrder(Line):
    """A task for any node."""

    task: str
    """A `TaskOrder`'s line."""
    witness: str = ""
    """Name of a lock in the store that the driver holds: if a node finds it free, the node sees another store."""
    mirror: Mirror | None = None


class NodeQuestion(Line):
    """A request for a node's description."""

    store: str
    witness: str = ""
    """As in orders; empty if the node need not see the store."""


class NodeAnswer(Line):
    """A node's description."""

    machine: str
    """Fingerprint, as in keys."""
    measuring: dict[str, str] = {}
    """Device (`cpu`, `gpu`) -> the fingerprint for measurements on it."""
    complaint: str = ""
    """Reason why the node cannot be used, as a sentence without its period; empty if it can."""


class Alive(Line):
    """The node is still working, without news."""

    kind: Literal["alive"] = "alive"


class MissingArtifacts(Line):
    """The node cannot start: artifacts could not be read completely from the remote store."""

    kind: Literal["missing_artifacts"] = "missing_artifacts"
    digests: tuple[Digest, ...]


FinalMessage = End | MissingArtifacts
NodeMessage = Alive | News | FinalMessage

_NODE_MESSAGE: TypeAdapter[NodeMessage] = TypeAdapter(Annotated[NodeMessage, Field(discriminator="kind")])


def read_node_message(line: str) -> NodeMessage:
    """Return a node's message about a task."""
    return _NODE_MESSAGE.validate_json(line)
