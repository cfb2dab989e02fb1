"""Tasks that Ray loses: attempts, their limits, and the final errors, with a simulated cluster."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.execution.executor import compute_steps
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.messages import Alive, Failed, transfer_files
from ndld_flow.execution.ray import executor as on_ray
from ndld_flow.execution.ray import node as ray_node
from ndld_flow.execution.ray.cluster import Conversation
from ndld_flow.execution.ray.executor import SILENCE_S, LostError, OnRay, TaskMonitor, have_arrived
from ndld_flow.execution.ray.messages import BridgeMessage, NodeOrder, read_node_message
from ndld_flow.execution.workers import TaskListener
from ndld_flow.store.files import remove_folder
from tests.support.ray_toys import make_task
from tests.support.worker_toys import Deeds

Answer = Callable[[str], Iterator[BridgeMessage]]
"""What becomes of an order."""


def said(kind: Any, text: str = "") -> BridgeMessage:
    return BridgeMessage(id=1, kind=kind, text=text)


def never_begun(_: str) -> Iterator[BridgeMessage]:
    yield said("lost", "its node went away")


def cut_off(_: str) -> Iterator[BridgeMessage]:
    yield said("message", Alive().to_line())
    yield said("lost", "its node died")


def refused(_: str) -> Iterator[BridgeMessage]:
    yield said("refused", "ModuleNotFoundError: No module named 'ndld_flow'")


def done(order: str) -> Iterator[BridgeMessage]:
    yield from (said("message", line) for line in ray_node.compute(order))


def done_unheard(order: str) -> Iterator[BridgeMessage]:
    list(ray_node.compute(order))
    yield said("lost", "the connection to Ray ended")


class Played:
    """A cluster of one node that answers as scripted."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self.script = list(script)
        self.disconnected = False

    @contextlib.contextmanager
    def converse(self, ask: str, text: str, options: object = None) -> Iterator[Conversation]:
        lines: queue.SimpleQueue[BridgeMessage] = queue.SimpleQueue()
        for line in self.script.pop(0)(text) if ask == "compute" else _look(text):
            lines.put(line)
        yield Conversation(lines)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _look(question: str) -> Iterator[BridgeMessage]:
    node = {"id": "1", "address": "127.0.0.1", "resources": {"CPU": 2}, "answer": ray_node.describe(question)}
    yield said("ended", json.dumps([node]))


@pytest.fixture
def compute(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """`compute(cut_off, done)`: the summary of a step that first is cut off, then done."""
    deeds = Deeds(in_folder)

    def do(*script: Answer) -> str:
        cluster = Played(script)
        monkeypatch.setattr(on_ray, "RayCluster", lambda _: cluster)
        executor = OnRay("played", {}, ignore, trust=True)
        try:
            (record,) = executor.submit(make_task(deeds, "word: hello"), deeds.store).result(60)
            assert not cluster.script
            return record.summary
        finally:
            executor.close()

    yield do
    for worker in ray_node._workers.values():
        worker.release()
    ray_node._workers.clear()


def test_lost_tasks_are_retried(compute: Callable[..., str]) -> None:
    assert compute(cut_off, never_begun, cut_off, done) == "hello"  # who did not begin does not count


def test_a_task_is_given_up_after_three_interruptions(compute: Callable[..., str]) -> None:
    with pytest.raises(BackendError, match="Ray lost it 3 times"):
        compute(cut_off, cut_off, cut_off)


@pytest.mark.thorough
def test_tasks_that_no_node_starts_are_given_up(compute: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "MAX_PLACEMENTS", 2)
    with pytest.raises(BackendError, match="2 times; the last time"):
        compute(never_begun, never_begun)


@pytest.mark.thorough
def test_a_finished_task_whose_answer_was_lost_is_not_repeated(compute: Callable[..., str]) -> None:
    assert compute(done_unheard) == "hello"


def test_a_node_reports_the_start_of_a_task_at_once(in_folder: Path) -> None:
    words = ray_node.compute(NodeOrder(task="not even an order", witness="").to_line())
    assert read_node_message(next(words)) == Alive()
    assert isinstance(read_node_message(list(words)[-1]), Failed)


def test_an_unusable_node_is_not_tried_twice(compute: Callable[..., str]) -> None:
    with pytest.raises(BackendError, match="No module named 'ndld_flow'"):
        compute(refused)


def test_a_node_that_is_silent_for_long_is_lost(in_folder: Path) -> None:
    task = make_task(Deeds(in_folder))
    watch = TaskMonitor(task, TaskListener(task, ignore, threading.Lock()))
    watch.check()  # it is queued
    watch.last_message_s = time.monotonic() - SILENCE_S - 1
    with pytest.raises(LostError, match=f"{SILENCE_S:g} s"):
        watch.check()


def test_incomplete_transfers_are_not_received(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "SEEN_WITHIN_S", 0.0)
    deeds = Deeds(in_folder)
    records = compute_steps(make_task(deeds), deeds.store, lambda *_: None)
    assert have_arrived(records, deeds.store)
    remove_folder(deeds.store.object_folder(records[0].artifact.digest))
    assert not have_arrived(records, deeds.store)


def test_a_model_changed_since_planning_is_not_sent(in_folder: Path) -> None:
    deeds = Deeds(in_folder)
    task = make_task(deeds)
    task.works[0].source.path.write_bytes(b"\x3a\x00")  # another model, as its fields say
    with pytest.raises(RequestError, match=r"model .*model.onnx: it changed"):
        transfer_files(task, deeds.store, trust=True)
