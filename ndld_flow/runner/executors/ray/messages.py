"""What crosses Ray, as JSON text: what a node is asked, and what it says. Nothing of ours is pickled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ndld_flow.records.step_record import ArtifactRecord
from ndld_flow.runner.executors.messages import Done, Failed, Line, Logged, Progressed, Refused, Waits


class Mirror(Line):
    """A store that nodes do not see: each has one of its own, and what it needs and makes goes through a remote one."""

    url: str
    reads: tuple[ArtifactRecord, ...]
    damaged: tuple[str, ...]
    """Digests of artifacts that were found damaged there."""


class NodeOrder(Line):
    """A task for whichever node gets it."""

    task: str
    """A `TaskOrder`'s line."""
    witness: str = ""
    """Name of a lock in the store that the driver holds: a node that does not see it held sees another store."""
    mirror: Mirror | None = None


class NodeQuestion(Line):
    """What is a node, and does it see the store?"""

    store: str
    witness: str = ""
    """As in orders; empty where it need not see the store."""


class NodeAnswer(Line):
    """What a node is to steps."""

    machine: str
    """Fingerprint, as in keys."""
    measuring: dict[str, str] = {}
    """Device (`cpu`, `gpu`) -> the same for measurements on it."""
    complaint: str = ""
    """Why it cannot work, as a sentence without its end; empty when it can."""


class Alive(Line):
    """Nothing new, but the node is there, and works."""

    said: Literal["alive"] = "alive"


class Lacks(Line):
    """The node cannot begin: artifacts could not be read whole from the remote store."""

    said: Literal["lacks"] = "lacks"
    digests: tuple[str, ...]


class Stopped(Line):
    """The work took longer than it may."""

    said: Literal["stopped"] = "stopped"


class Died(Line):
    """The process that worked on it died."""

    said: Literal["died"] = "died"
    text: str
    killed: bool = False
    """Whether a signal ended it."""


Word = Alive | Progressed | Logged | Waits | Done | Refused | Failed | Lacks | Stopped | Died
Last = Done | Refused | Failed | Lacks | Stopped | Died

_WORD: TypeAdapter[Word] = TypeAdapter(Annotated[Word, Field(discriminator="said")])


def read_word(line: str) -> Word:
    """What a node says of a task."""
    return _WORD.validate_json(line)
