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
from ndld_flow.execution.messages import Died, End, Failed, Refused, Stopped, TaskOrder
from ndld_flow.execution.ray.messages import (
    Alive,
    NodeAnswer,
    NodeMessage,
    NodeOrder,
    NodeQuestion,
)
from ndld_flow.execution.workers import WorkerProcess
from ndld_flow.machine.host import ON_CLUSTER, describe_place
from ndld_flow.step import Reuse
from ndld_flow.store.store import Store

ALIVE_EVERY_S = 5.0
"""Seconds between messages of a working node: silence means that it, or the connection to it, has failed."""

_workers: dict[str, WorkerProcess] = {}
"""The worker processes of this Ray worker, by the GPUs that they see: Ray changes them from task to task."""


def describe(question: str) -> str:
    """Answer a `NodeQuestion` with a `NodeAnswer`."""
    request = NodeQuestion.from_line(question)
    complaint = find_fault(Store(Path(request.store)), request.witness)
    with _on_cluster():
        measuring = {device: describe_place(Reuse.SAME_KIND, device) for device in ("cpu", "gpu")}
        machine = describe_place(Reuse.THIS_MACHINE, "")
    return NodeAnswer(machine=machine, measuring=measuring, complaint=complaint).to_line()


def compute(order: str) -> Iterator[str]:
    """Compute a `NodeOrder`; yield `NodeMessage`s as lines: an `Alive` at once, and at last an `End`."""
    task = _NodeTask(queue.SimpleQueue())
    threading.Thread(target=task.work, args=(NodeOrder.from_line(order),), daemon=True).start()
    message: NodeMessage = Alive()
    yield message.to_line()
    while not isinstance(message, get_args(End)):
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
        return f"{where} does not see the store {store.root}: mount the outputs folder there under the same path"
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
            store = Store(Path(task.store))
            if fault := find_fault(store, order.witness):
                raise BackendError(f"{fault}.")
            self.outbox.put(self._compute(task, store))
        except BackendError as error:
            self.outbox.put(Refused(error=BackendError.__name__, text=error.message, step=error.step))
        except BaseException as error:
            self.outbox.put(Failed(error=type(error).__name__, text=str(error), traceback=traceback.format_exc()))

    def _compute(self, order: TaskOrder, store: Store) -> End:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if gpus not in _workers:
            with _on_cluster():
                _workers[gpus] = WorkerProcess()
        end = _workers[gpus].do(order, self.outbox.put)
        if isinstance(end, Died | Stopped):
            _workers.pop(gpus).release()
            store.sweep_building()  # its unfinished results
        return end
