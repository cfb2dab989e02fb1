"""Transfer of tasks and results between the driver's store and Ray's nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field, TypeAdapter

from ndld_flow.execution.executor import Task
from ndld_flow.execution.messages import End, Line, News
from ndld_flow.execution.transfer import transfer_files
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store

SEEN_WITHIN_S = 90.0
"""Network file systems may take a minute until one machine sees what another has written."""


class SharedFolder:
    """Transfers tasks and results through a store that all nodes see under its path, with the locks in it."""

    def __init__(self) -> None:
        self._witnesses: dict[Store, str] = {}
        self._leases = contextlib.ExitStack()

    def ask(self, store: Store) -> NodeQuestion:
        """Return the request for the description of a node."""
        if store not in self._witnesses:
            name = uuid4().hex[:12]
            self._leases.enter_context(store.locks.lease("ray", name))
            self._witnesses[store] = f"ray-{name}"
        return NodeQuestion(store=str(store.root.absolute()), witness=self._witnesses[store])

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        """Return the order for a node. The node can read the task's inputs afterwards."""
        order = transfer_files(task, store, trust=trust).order
        return NodeOrder(task=order.to_line(), witness=self._witnesses[store])

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        """Wait until a node's results are in the store; return False if they did not arrive completely."""
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not all(store.is_intact(record.artifact) for record in records):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def close(self) -> None:
        """Release all locks."""
        self._leases.close()


class NodeOrder(Line):
    """A task for any node."""

    task: str
    """A `TaskOrder`'s line."""
    witness: str
    """Name of a lock in the store that the driver holds: if a node finds it free, the node sees another store."""


class NodeQuestion(Line):
    """A request for a node's description."""

    store: str
    witness: str
    """As in orders."""


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


NodeMessage = Alive | News | End

_NODE_MESSAGE: TypeAdapter[NodeMessage] = TypeAdapter(Annotated[NodeMessage, Field(discriminator="kind")])


def read_node_message(line: str) -> NodeMessage:
    """Return a node's message about a task."""
    return _NODE_MESSAGE.validate_json(line)
