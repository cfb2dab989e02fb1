"""Messages between the driver and Ray's nodes, as JSON text: no objects of ndld_flow are pickled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ndld_flow.records.document import Digest
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.runner.executors.messages import Died, Done, Failed, Line, Logged, Progressed, Refused, Stopped, Waits


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


NodeMessage = Alive | Progressed | Logged | Waits | Done | Refused | Failed | MissingArtifacts | Stopped | Died
FinalMessage = Done | Refused | Failed | MissingArtifacts | Stopped | Died

_NODE_MESSAGE: TypeAdapter[NodeMessage] = TypeAdapter(Annotated[NodeMessage, Field(discriminator="kind")])


def read_node_message(line: str) -> NodeMessage:
    """Return a node's message about a task."""
    return _NODE_MESSAGE.validate_json(line)
