"""The side of a Ray worker: reads an order as text, computes it against a store, and yields messages, without using
Ray.

Steps are computed in a process of their own, which lasts as long as the Ray worker: Ray's threads do not disturb
measurements there, a crash can be explained, and everything that steps have started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.keys import make_key
from ndld_flow.execution.messages import Died, Done, Failed, Refused, Stopped, TaskOrder
from ndld_flow.execution.ray.transport import (
    Alive,
    FinalMessage,
    Mirror,
    MissingArtifacts,
    NodeAnswer,
    NodeMessage,
    NodeOrder,
    NodeQuestion,
)
from ndld_flow.execution.transfer import move_order
from ndld_flow.execution.workers import WorkerProcess
from ndld_flow.machine.host import ON_CLUSTER, describe_place
from ndld_flow.step import Reuse
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store, node_store_folder

ALIVE_EVERY_S = 5.0
"""Seconds between messages of a working node: silence means that it, or the connection to it, has failed."""

_workers: dict[str, WorkerProcess] = {}
"""The worker processes of this Ray worker, by the GPUs that they see: Ray changes them from task to task."""


def describe(question: str) -> str:
    """Answer a `NodeQuestion` with a `NodeAnswer`."""
    request = NodeQuestion.from_line(question)
    complaint = find_fault(Store(Path(request.store)), request.witness) if request.witness else ""
    with _on_cluster():
        measuring = {device: describe_place(Reuse.SAME_KIND, device) for device in ("cpu", "gpu")}
        machine = describe_place(Reuse.THIS_MACHINE, "")
    return NodeAnswer(machine=machine, measuring=measuring, complaint=complaint).to_line()


def compute(order: str) -> Iterator[str]:
    """Compute a `NodeOrder`; yield `NodeMessage`s as lines: an `Alive` at once, and at last a `FinalMessage`."""
    task = _NodeTask(queue.SimpleQueue())
    threading.Thread(target=task.work, args=(NodeOrder.from_line(order),), daemon=True).start()
    message: NodeMessage = Alive()
    yield message.to_line()
    while not isinstance(message, get_args(FinalMessage)):
        try:
            message = task.outbox.get(timeout=ALIVE_EVERY_S)
        except queue.Empty:
            message = Alive()
        yield message.to_line()


@contextlib.contextmanager
def _on_cluster() -> Iterator[None]:
    """Make this process, and those that it starts, treat all machines of a kind as one."""
    os.environ[ON_CLUSTER] = "1"
    try:
        yield
    finally:
        os.environ.pop(ON_CLUSTER, None)


def find_fault(store: Store, witness: str) -> str:
    """Return why a store's folder is not the driver's, or its locks have no effect here; empty if it is usable."""
    where = f"Ray's node {platform.node()}"
    if not (store.root / "locks" / f"{witness}.lock").exists():
        return (
            f"{where} does not see the store {store.root}: mount the outputs folder there under the same path, or "
            "exchange files through a cache: --cache URL --push"
        )
    if not store.locks.is_held(witness):
        return (
            f"{where} sees the store {store.root}, but not the locks that others hold in it: mount it with locks that "
            "work across machines (NFS 4, or NFS 3 without `nolock`)"
        )
    return ""


@dataclass(frozen=True)
class _NodeTask:
    """Computes one order, and collects the messages to send."""

    outbox: queue.SimpleQueue[NodeMessage]

    def work(self, order: NodeOrder) -> None:
        try:
            task = TaskOrder.from_line(order.task)
            self.outbox.put(self._mirrored(task, order.mirror) if order.mirror else self._shared(task, order.witness))
        except BackendError as error:
            self.outbox.put(Refused(error=BackendError.__name__, text=error.message, step=error.step))
        except BaseException as error:
            self.outbox.put(Failed(error=type(error).__name__, text=str(error), traceback=traceback.format_exc()))

    def _shared(self, order: TaskOrder, witness: str) -> FinalMessage:
        store = Store(Path(order.store))
        fault = find_fault(store, witness)
        return Refused(error=BackendError.__name__, text=f"{fault}.") if fault else self._compute(order, store)

    def _mirrored(self, order: TaskOrder, mirror: Mirror) -> FinalMessage:
        """Compute in this node's own store; inputs come from the remote store, and results are written to it."""
        remote, store = RemoteStore(mirror.url), Store(node_store_folder())
        remote.damaged |= set(mirror.damaged)
        with store.locks.working():
            store.locks.use(make_key(work.parts) for work in order.works)
            store.locks.use(artifact.digest for artifact in mirror.reads)  # no record names them here: gc would
            lacks = [artifact.digest for artifact in mirror.reads if not remote.pull_artifact(artifact, store)]
            if lacks:
                return MissingArtifacts(digests=tuple(lacks))
            last = self._compute(move_order(order.to_line(), store), store)
            if isinstance(last, Done):
                remote.push(last.records, store)
            return last

    def _compute(self, order: TaskOrder, store: Store) -> FinalMessage:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if gpus not in _workers:
            with _on_cluster():
                _workers[gpus] = WorkerProcess()
        end = _workers[gpus].do(order, self.outbox.put)
        if isinstance(end, Died | Stopped):
            _workers.pop(gpus).release()
            store.sweep_building()  # its unfinished results
        return end
