"""A process between a sweep and Ray: messages in, messages out. No other part of ndld_flow imports Ray.

Ray prints to the terminal, handles signals, and ends the process whose node dies, so it has a process of its own. The
bridge exits when its standard input closes; Ray then ends the running tasks.

`python -P -m ndld_flow.execution.ray.bridge ADDRESS` reads `BridgeRequest`s and writes `BridgeMessage`s.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from ndld_flow.execution.ray import node as ray_node
from ndld_flow.execution.ray.messages import BridgeMessage, BridgeRequest
from ndld_flow.processes.lines import Output

FIRST_WITHIN_S = 60.0
OTHERS_WITHIN_S = 10.0
"""Seconds within which nodes must describe themselves: a worker starts there and imports a few libraries."""
_SHUTDOWN_S = 5.0


class Bridge:
    """Carries out requests, all at the same time."""

    def __init__(self, output: Output) -> None:
        import ray

        self._ray = ray
        self._output = output
        self._tasks: dict[int, Any] = {}
        self._answers: dict[tuple[str, str], asyncio.Future[dict[str, str]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def handle(self, line: bytes) -> None:
        """Start a request."""
        request = BridgeRequest.from_line(line)
        if request.ask == "cancel":
            self._cancel(request.id)
            return
        work = self._compute(request) if request.ask == "compute" else self._look(request)
        running = asyncio.get_running_loop().create_task(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _send(self, number: int, kind: Literal["message", "ended", "refused", "lost"], text: str = "") -> None:
        self._output.send(BridgeMessage(id=number, kind=kind, text=text))

    async def _compute(self, request: BridgeRequest) -> None:
        number = request.id
        try:
            compute = self._ray.remote(ray_node.compute)
            # No retries by Ray: the driver first looks into the store, and then submits the task again.
            task = compute.options(num_returns="streaming", max_retries=0, **request.options).remote(request.text)
            self._tasks[number] = task
            async for answer in task:
                self._send(number, "message", await answer)
            self._send(number, "ended")
        except self._ray.exceptions.RayTaskError as error:
            self._send(number, "refused", _last_line(error))
        except Exception as error:
            # Only the first sentence: the rest names Ray's own tools and logs.
            line = next((line for line in str(error).splitlines() if line.strip()), "")
            self._send(number, "lost", f"{type(error).__name__}: {line.partition('. ')[0].rstrip('.')}")
        finally:
            self._tasks.pop(number, None)

    def _cancel(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            self._ray.cancel(task, force=True)

    async def _look(self, request: BridgeRequest) -> None:
        """Answer with all nodes that have CPUs, each with its description; each node is asked once."""
        living = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        places = [(node["NodeID"], request.text) for node in living]
        for node, question in places:
            if (node, question) not in self._answers:
                self._answers[node, question] = asyncio.ensure_future(self._describe(node, question))
        if answers := [self._answers[place] for place in places]:
            # Ray lists dead nodes for a while.
            await asyncio.wait(answers, timeout=FIRST_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(answers, timeout=OTHERS_WITHIN_S)
        described = [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "resources": node["Resources"],
                **answer.result(),
            }
            for node, place in zip(living, places, strict=True)
            if (answer := self._answers[place]).done() and answer.result()
        ]
        for place in places:
            if self._answers[place].done() and not self._answers[place].result():
                del self._answers[place]  # it was shutting down; if it still exists, it is asked again
        self._send(request.id, "ended", json.dumps(described))

    async def _describe(self, node: str, question: str) -> dict[str, str]:
        """Return a node's description; nothing if it is shutting down."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        describe = self._ray.remote(ray_node.describe)
        try:
            request = describe.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(question)
            return {"answer": await request}
        except self._ray.exceptions.RayTaskError as error:
            return {"refusal": _last_line(error)}
        except Exception:
            return {}

    def close(self) -> None:
        for number in list(self._tasks):
            self._cancel(number)
        self._ray.shutdown()


def _last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


async def _serve(bridge: Bridge) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(bridge.handle, line)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


def main() -> None:
    """Connect, report success or the reason, and serve until standard input ends."""
    output = Output()
    bridge = Bridge(output)
    try:
        import ray

        address = sys.argv[1]
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        # Ray lets its workers import from this current directory: a file `json.py` next to a recipe must not be
        # imported.
        os.chdir(Path(sys.executable).anchor)
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    except Exception as error:
        # Ray prints versions that differ on separate lines; the advice is ours.
        reason = " ".join(str(error).split()).partition(" Please specify ")[0]
        output.send(BridgeMessage(id=0, kind="refused", text=f"{type(error).__name__}: {reason}"))
        os._exit(1)
    output.send(BridgeMessage(id=0, kind="ended"))
    asyncio.run(_serve(bridge))
    threading.Timer(_SHUTDOWN_S, os._exit, (0,)).start()
    bridge.close()
    os._exit(0)


if __name__ == "__main__":
    main()
