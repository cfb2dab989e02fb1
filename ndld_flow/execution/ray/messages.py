"""Messages between the driver, the bridge and Ray's nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from ndld_flow.execution.messages import Alive, End, News
from ndld_flow.processes.lines import Line


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


class BridgeRequest(Line):
    """A request to the bridge."""

    id: int
    ask: Literal["compute", "look", "cancel"]
    text: str = ""
    options: dict[str, JsonValue] = {}
    """Where Ray may place the task."""


class BridgeMessage(Line):
    """An answer of the bridge; the last one about a request is none of the kind `message`."""

    id: int
    kind: Literal["message", "ended", "refused", "lost"]
    text: str = ""


NodeMessage = Alive | News | End

_NODE_MESSAGE: TypeAdapter[NodeMessage] = TypeAdapter(Annotated[NodeMessage, Field(discriminator="kind")])


def read_node_message(line: str) -> NodeMessage:
    """Return a node's message about a task."""
    return _NODE_MESSAGE.validate_json(line)
