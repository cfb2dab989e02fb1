"""A Ray cluster for a sweep: its nodes, the resources that tasks need, and conversations about tasks."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import require
from ndld_flow.base.text import short_name, shortened, suggest, visible_name
from ndld_flow.execution.messages import NO_ANSWER
from ndld_flow.execution.ray.messages import BridgeMessage, BridgeRequest, NodeAnswer
from ndld_flow.processes.launch import Child, module_command, start_process
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.targets import Needs
from ndld_flow.records.document import StrictRecord
from ndld_flow.step import Reuse

CONNECT_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 8.0
PROBE_TIMEOUT_S = 10.0

_QUIET = {"PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}


@dataclass(frozen=True)
class Conversation:
    """The messages about one request."""

    lines: queue.SimpleQueue[BridgeMessage]

    def receive(self, timeout_s: float) -> BridgeMessage | None:
        """Return the next message; None if none comes in time."""
        try:
            return self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return None


class RayCluster:
    """Connects to a cluster through a separate process (`ray.bridge`)."""

    def __init__(self, address: str) -> None:
        """Connect. Raises BackendError if Ray is missing or nothing answers at the address."""
        require("ray", "steps on the machines of a cluster")
        _check_address(address)
        self.address = address
        self._numbers = itertools.count(1)
        self._conversations: dict[int, Conversation] = {0: Conversation(queue.SimpleQueue())}
        self._lock = threading.Lock()
        self.disconnected = False
        """True if the connection has ended: Ray's head node, or its node on this machine, has stopped."""
        # Ray would leave a token in ~/.ray, which changes the authentication of the user's own clusters.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if address == "local" else {}
        command = module_command("ndld_flow.execution.ray.bridge", address)
        # Ray writes its problems to its own logs.
        self._bridge = Child(start_process(command, environment={**token, **os.environ, **_QUIET}), CLOSE_TIMEOUT_S)
        threading.Thread(target=self._read, daemon=True).start()
        self._await_connection()

    def _await_connection(self) -> None:
        try:
            answer = self._conversations[0].receive(CONNECT_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        if answer is None or answer.kind != "ended":
            reason = answer.text if answer is not None else f"no answer within {CONNECT_TIMEOUT_S:g} s"
            self.close()
            raise _not_reached(self.address, reason)

    @contextlib.contextmanager
    def converse(
        self, ask: Literal["compute", "look"], text: str, options: Mapping[str, JsonValue] | None = None
    ) -> Iterator[Conversation]:
        """Request a task (`compute`) or the nodes (`look`); cancel an unfinished one at the end of the block."""
        number = next(self._numbers)
        conversation = Conversation(queue.SimpleQueue())
        with self._lock:
            self._conversations[number] = conversation
            if self.disconnected:
                conversation.lines.put(_connection_lost(number))
        self._bridge.send(BridgeRequest(id=number, ask=ask, text=text, options=dict(options or {})).to_line())
        try:
            yield conversation
        finally:
            with self._lock:
                unfinished = self._conversations.pop(number, None) is not None
            if unfinished:
                self._bridge.send(BridgeRequest(id=number, ask="cancel").to_line())

    def close(self) -> None:
        """Cancel all requests and disconnect."""
        self._bridge.end()

    def _read(self) -> None:
        """Pass each line to its conversation; when the bridge has ended, report that to all."""
        with contextlib.suppress(ValueError):  # the line is no message
            while text := self._bridge.read_line():
                line = BridgeMessage.from_line(text)
                with self._lock:
                    conversation = (
                        self._conversations.get(line.id)
                        if line.kind == "message"
                        else self._conversations.pop(line.id, None)
                    )
                if conversation is not None:
                    conversation.lines.put(line)
        with self._lock:
            self.disconnected, conversations, self._conversations = True, self._conversations, {}
        for number, conversation in conversations.items():
            conversation.lines.put(_connection_lost(number))
        self._bridge.release()


def _connection_lost(number: int) -> BridgeMessage:
    return BridgeMessage(id=number, kind="lost", text="the connection to Ray ended")


def _not_reached(address: str, reason: str) -> BackendError:
    return BackendError(
        f"Ray at {visible_name(address)}: {shortened(visible_name(reason), 300).rstrip('.')}. This machine must be a "
        "node of the cluster (`ray start --address=HOST:PORT`); if that needs a token, store it in ~/.ray/auth_token "
        "and set RAY_AUTH_MODE=token. `local` starts a cluster on this machine."
    )


def _check_address(address: str) -> None:
    """Raise BackendError if nothing answers at an address: Ray itself takes a minute to notice."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise BackendError(f"Ray's address {address!r}: give `auto`, `local` or `HOST:PORT`.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise _not_reached(address, f"nothing answers: {error}") from None


_MARKER_SHARE = 0.001
"""Share of a resource that only restricts the node: any number of tasks may take it."""
_OWN_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    id: str
    address: str
    resources: Mapping[str, float]
    """All of its resources, in use or not."""
    answer: NodeAnswer

    def __str__(self) -> str:
        own = [f"{self.resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU")]
        return f"{self.address} ({', '.join([*own, *map(visible_name, self.devices)])})"

    @property
    def devices(self) -> list[str]:
        """Return the device types that were configured when the node was started, and the GPU that Ray found."""
        names = (name.removeprefix("accelerator_type:") for name in self.resources if name not in _OWN_RESOURCES)
        return sorted(name for name in names if not name.startswith("node:"))


@dataclass(frozen=True)
class Demand:
    """Resources of a node that steps which run together take."""

    gpus: float
    cpus: float | None
    """None: all of the node's, so that nothing else runs during a measurement of the CPU."""
    device: str
    exclusive: bool
    """True if the steps measure and so need a whole device."""


class _ListedNode(StrictRecord):
    """A node in the bridge's answer."""

    id: str
    address: str
    resources: dict[str, Annotated[float, Field(ge=0)]]
    answer: str | None = None
    refusal: str = NO_ANSWER


_NODES = TypeAdapter(tuple[_ListedNode, ...])


def read_nodes(answer: str) -> list[Node]:
    """Return the cluster's nodes from the bridge's answer. Raises ValidationError."""
    return [Node(each.id, each.address, each.resources, _read_answer(each)) for each in _NODES.validate_json(answer)]


def _read_answer(node: _ListedNode) -> NodeAnswer:
    reason = node.refusal
    if node.answer is not None:
        try:
            return NodeAnswer.from_line(node.answer)
        except ValidationError:
            reason = NO_ANSWER
    return NodeAnswer(
        machine="",
        complaint=f"Ray's node {node.address} cannot work: {reason}. Install the same ndld-flow and Python there",
    )


def make_demand(steps: Sequence[RecipeStep], needs: Mapping[str, Needs]) -> Demand:
    """Return the demand of steps: from `needs` by a step's name, or else from the device that they measure."""
    own = [needs[name] for step in steps if (name := step.name.partition("#")[0]) in needs]
    device = steps[0].step.device
    gpus = max([need.gpus for need in own], default=0.0)
    cpus = [need.cpus for need in own if "cpus" in need.model_fields_set]
    by_default = None if device == "cpu" else 1.0
    return Demand(
        gpus=max(gpus, 1.0) if device.startswith("gpu") else gpus,
        cpus=max(cpus) if cpus else by_default,
        device=next((need.device for need in own if need.device), ""),
        exclusive=bool(device),
    )


def find_nodes(demand: Demand, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that may compute a task. Raises BackendError if one of them cannot use this store."""
    fitting = [node for node in nodes if _fits(demand, node)]
    complaint = next((node.answer.complaint for node in fitting if node.answer.complaint), "")
    if complaint:
        raise BackendError(f"{short_name(complaint, 500)}.")
    return fitting


def only_machine(fitting: Sequence[Node], step: RecipeStep) -> str:
    """Return the fingerprint of these nodes for keys. Raises BackendError if they are of several kinds."""
    kinds = {_describe(node.answer, step): node for node in fitting}
    if len(kinds) > 1:
        first, second = list(kinds.items())[:2]
        raise BackendError(
            f"a measuring step could run on Ray's node {first[1].address} ({first[0]}) or on {second[1].address} "
            f"({second[0]}), and their measurements must not be mixed. Give one kind a name when you start its nodes, "
            "`ray start --resources='{\"fast\": 1}'`, and in the recipe: `needs: {STEP: {device: fast}}`."
        )
    return next(iter(kinds))


def _describe(answer: NodeAnswer, step: RecipeStep) -> str:
    if step.step.reused_where() not in (Reuse.THIS_HOST, Reuse.SAME_KIND):
        return answer.machine
    return answer.measuring.get("gpu" if step.step.device.startswith("gpu") else "cpu", answer.machine)


def make_options(demand: Demand, fitting: Sequence[Node]) -> dict[str, JsonValue]:
    """Return the options with which Ray places a task on one of the nodes that `find_nodes` found."""
    cpus = min(node.resources.get("CPU", 0.0) for node in fitting) if demand.cpus is None else demand.cpus
    options: dict[str, JsonValue] = {"num_cpus": cpus, "num_gpus": demand.gpus}
    named = {_device_of(demand, node) for node in fitting} - {""}
    # Ray accepts one name: if nodes have the device under two names, the one that the user gave.
    for name in sorted(named, key=len)[:1]:
        options["resources"] = {
            name: 1.0 if demand.exclusive and not name.startswith("accelerator_type:") else _MARKER_SHARE
        }
    return options


def _fits(demand: Demand, node: Node) -> bool:
    enough = node.resources.get("GPU", 0) >= demand.gpus and node.resources.get("CPU", 0) >= (demand.cpus or 0)
    return enough and (not demand.device or bool(_device_of(demand, node)))


def _device_of(demand: Demand, node: Node) -> str:
    """Return Ray's name for the wanted device on a node; empty if it has none."""
    names = (demand.device, f"accelerator_type:{demand.device}") if demand.device else ()
    return next((name for name in names if node.resources.get(name, 0) > 0), "")


def explain_no_node(demand: Demand, nodes: Sequence[Node], address: str) -> BackendError:
    """Return the error that no node fits, with the nodes of the cluster."""
    known = sorted({name for node in nodes for name in node.devices})
    nearest = f" ({suggest(demand.device, known)})" if known else ""
    wanted = [f"{demand.gpus:g} GPUs"] if demand.gpus else []
    wanted += [f"{demand.cpus:g} CPUs"] if demand.cpus else []
    wanted += [f"the device {demand.device!r}{nearest}"] if demand.device else []
    there = "; ".join(str(node) for node in nodes[:5]) or "none that answers"
    more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    return BackendError(
        f"Ray at {address} has no node with {' and '.join(wanted) or 'a CPU'}. Its nodes: {there}{more}."
    )
