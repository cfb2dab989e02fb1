"""The side of a Ray worker: reads an order as text, computes it against a store, and yields messages, without using
Ray.

Steps are computed in a process of their own, which lasts as long as the Ray worker: Ray's threads do not disturb
measurements there, a crash can be explained, and everything that steps have started ends with it.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.messages import Alive, End, Report, TaskOrder, describe_error
from ndld_flow.execution.ray.messages import NodeAnswer, NodeMessage, NodeOrder, NodeQuestion
from ndld_flow.execution.workers import Worker
from ndld_flow.machine.host import ON_CLUSTER, describe_place
from ndld_flow.step import Reuse
from ndld_flow.store.store import Store

ALIVE_EVERY_S = 5.0
"""Seconds between messages of a working node: silence means that it, or the connection to it, has failed."""

_workers: dict[str, Worker] = {}
"""The worker processes of this Ray worker, by the GPUs that they see: Ray changes them from task to task."""


def describe(question: str) -> str:
    """Answer a `NodeQuestion` with a `NodeAnswer`."""
    request = NodeQuestion.from_line(question)
    complaint = find_fault(Store(Path(request.store)), request.witness)
    os.environ[ON_CLUSTER] = "1"  # this process, and those that it starts, treat all machines of a kind as one
    try:
        measuring = {device: describe_place(Reuse.SAME_KIND, device) for device in ("cpu", "gpu")}
        machine = describe_place(Reuse.THIS_MACHINE, "")
    finally:
        os.environ.pop(ON_CLUSTER, None)
    return NodeAnswer(machine=machine, measuring=measuring, complaint=complaint).to_line()


def compute(order: str) -> Iterator[str]:
    """Compute a `NodeOrder`; yield `NodeMessage`s as lines: an `Alive` at once, and at last an `End`."""
    outbox: queue.SimpleQueue[NodeMessage] = queue.SimpleQueue()
    task = NodeOrder.from_line(order)
    threading.Thread(target=lambda: outbox.put(_compute(task, outbox.put)), daemon=True).start()
    message: NodeMessage = Alive()
    yield message.to_line()
    while not isinstance(message, get_args(End)):
        try:
            message = outbox.get(timeout=ALIVE_EVERY_S)
        except queue.Empty:
            message = Alive()
        yield message.to_line()


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


def _compute(order: NodeOrder, report: Report) -> End:
    try:
        task = TaskOrder.from_line(order.task)
        store = Store(Path(task.store))
        if fault := find_fault(store, order.witness):
            raise BackendError(f"{fault}.")
        worker = _workers.setdefault(os.environ.get("CUDA_VISIBLE_DEVICES", ""), Worker({ON_CLUSTER: "1"}))
        return worker.compute(task, store, report)
    except BaseException as error:
        return describe_error(error)
