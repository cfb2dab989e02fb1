"""A Ray node that answers with hostile values has nothing of it kept, and ends the run plainly."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.ray import executor as on_ray
from ndld_flow.execution.ray import node as ray_node
from ndld_flow.execution.ray.cluster import Conversation
from ndld_flow.execution.ray.executor import OnRay
from ndld_flow.execution.ray.messages import BridgeMessage
from tests.support.ray_toys import make_task
from tests.support.started_processes import POOLS
from tests.support.worker_toys import Deeds

Change = Callable[[dict[str, Any]], object]
"""A change of a node's description, or of the last message about a task; what it returns is sent instead."""

HONEST: Change = lambda message: message  # noqa: E731


class Hostile:
    """A cluster of one node, which answers honestly but for the changes."""

    disconnected = False

    def __init__(self, listed: Change, answered: Change) -> None:
        self.listed, self.answered = listed, answered

    @contextlib.contextmanager
    def converse(self, ask: str, text: str, options: object = None) -> Iterator[Conversation]:
        lines: queue.SimpleQueue[BridgeMessage] = queue.SimpleQueue()
        if ask == "compute":
            *before, last = ray_node.compute(text)
            for line in (*before, _as_text(self.answered(json.loads(last)))):
                lines.put(BridgeMessage(id=1, kind="message", text=line))
        else:
            node = {"id": "1", "address": "127.0.0.1", "resources": {"CPU": 2}, "answer": ray_node.describe(text)}
            changed = self.listed(node)
            answer = json.dumps([changed]) if isinstance(changed, dict) else _as_text(changed)
            lines.put(BridgeMessage(id=1, kind="ended", text=answer))
        yield Conversation(lines)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _as_text(message: object) -> str:
    return message if isinstance(message, str) else json.dumps(message)


@pytest.fixture
def attack(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Change, Change], Deeds]:
    """Compute a step on a node whose answers are changed."""
    deeds = Deeds(in_folder)

    def run(listed: Change, answered: Change) -> Deeds:
        monkeypatch.setattr(on_ray, "RayCluster", lambda _: Hostile(listed, answered))
        executor = OnRay("hostile", {}, ignore, trust=True)
        try:
            (record,) = executor.submit(make_task(deeds, "word: hello"), deeds.store).result(60)
            assert record.summary == "hello"
        finally:
            executor.close()
        return deeds

    return run


@pytest.fixture(scope="module", autouse=True)
def shared_worker() -> Iterator[None]:
    """Let one process compute the step for all tests, as that of a node does for all tasks."""
    pids = lambda: [worker.pid for worker in ray_node._workers.values()]  # noqa: E731
    POOLS.append(pids)
    yield
    POOLS.remove(pids)
    for worker in ray_node._workers.values():
        worker.release()
    ray_node._workers.clear()


def of_record(*place: str | int, value: object) -> Change:
    """Return a change of the record that the node returns."""

    def change(message: dict[str, Any]) -> object:
        inner = message["records"][0]
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value
        return message

    return change


def instead(value: object) -> Change:
    return lambda _: value


def with_values(**values: object) -> Change:
    return lambda message: message | values


OTHER = "ab" * 32
FILE = ("artifact", "files", 0)
RECORDS: list[Change] = [
    *(of_record(*FILE, "path", value=path) for path in ("../x", "/etc/x", "a//b", "", 5)),
    *(of_record(*FILE, "digest", value=digest) for digest in ("../../.bashrc", "A" * 64, OTHER, 5)),
    *(of_record("artifact", "digest", value=digest) for digest in ("../x", OTHER)),
    *(of_record("key", value=key) for key in ("../x", OTHER)),
    of_record(*FILE, "size_bytes", value=10**400),
    of_record("artifact", "kind", value="engine"),
    of_record("parts", "settings", value={}),
    of_record("parts", "libraries", value={"onnx": "0"}),
    of_record("started_at", value="2020-01-01T00:00:00"),
    with_values(records=[]),
    lambda message: message | {"records": message["records"] * 2},
]
MESSAGES: list[Change] = [
    *map(instead, ("hello", "{}", "[" * 100_000, {"kind": "no such kind"}, {"kind": "done"})),
    instead({"kind": "refused", "error": "Path", "text": "x"}),
    instead({"kind": "progressed", "index": -1, "done": 1, "total": 2, "what": "w"}),
]
NODES: list[Change] = [
    *map(instead, ("hello", "{}", "5", "[5]", "[" * 100_000)),
    with_values(id=5),
    with_values(address=["x"]),
    with_values(resources={"CPU": "many"}),
    with_values(resources={"CPU": -1}),
    with_values(resources={"CPU": float("nan")}),
    with_values(answer=5),
    with_values(answer="hello"),
    with_values(answer='{"machine": 5}'),
    with_values(answer='{"machine": "x", "complaint": "%s"}' % ("a\\n\\u001b[2Jb" * 1000)),
    with_values(answer=None, refusal="a\nb" * 1000),
    with_values(unknown=1),
]


@pytest.mark.parametrize(
    ("listed", "answered"),
    [
        *((HONEST, change) for change in (*RECORDS, *MESSAGES)),
        *((change, HONEST) for change in NODES),
    ],
)
def test_no_answer_of_a_node_is_kept_unchecked(
    listed: Change, answered: Change, attack: Callable[[Change, Change], Deeds], in_folder: Path
) -> None:
    with pytest.raises(BackendError) as error:
        attack(listed, answered)
    assert error.value.exit_code == 2
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 2_000


def test_an_honest_node_serves(attack: Callable[[Change, Change], Deeds]) -> None:
    attack(HONEST, HONEST)
