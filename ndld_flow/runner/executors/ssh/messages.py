"""Messages between this machine and the node, our process on a target, as JSON, one per line.

Each question is answered before the next one is asked. The contents of files follow their message as bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from ndld_flow.machine.check import Check
from ndld_flow.records.document import Count, Digest, InnerPath
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runner.executors.messages import (
    Answer,
    Died,
    Done,
    Failed,
    Line,
    Logged,
    Progressed,
    Refused,
    Stopped,
    Waits,
)


class Describe(Line):
    """Ask for the circumstances of a step; the answer is `Described`."""

    kind: Literal["describe"] = "describe"
    step: str
    """The step type, as written in the recipe."""
    settings: dict[str, JsonValue]
    modules: tuple[str, ...]
    """Installed modules that the user's code imports."""


class Examine(Line):
    """Ask for what `doctor` finds; the answer is `Examined`."""

    kind: Literal["examine"] = "examine"


class Lack(Line):
    """Ask which files of artifacts are missing; the answer is `Lacking`."""

    kind: Literal["lack"] = "lack"
    artifacts: tuple[ArtifactRecord, ...]


class Send(Line):
    """Announce the bytes of a file from an offset to its end, which follow."""

    kind: Literal["send"] = "send"
    digest: Digest
    offset: Count
    size_bytes: Count
    """Number of bytes that follow."""


class Keep(Line):
    """Ask the node to store an artifact whose files it has; the answer is `Kept`."""

    kind: Literal["keep"] = "keep"
    artifact: ArtifactRecord


class Find(Line):
    """Ask for the records of steps that ran together; the answer is `Found`."""

    kind: Literal["find"] = "find"
    keys: tuple[Digest, ...]


class Compute(Line):
    """Compute a task; the answers are progress, log lines, and at last its end."""

    kind: Literal["compute"] = "compute"
    order: str
    """A `TaskOrder`'s line; paths in the sender's store are turned into those of the node's."""


class Fetch(Line):
    """Ask for the bytes of an artifact's file from an offset; the answer is `Sent`, and the bytes."""

    kind: Literal["fetch"] = "fetch"
    artifact: Digest
    path: InnerPath
    offset: Count


class Alive(Line):
    """The sender still runs: a node that hears nothing for `SILENCE_S` ends."""

    kind: Literal["alive"] = "alive"


class Ready(Line):
    """The node has started."""

    kind: Literal["ready"] = "ready"
    name: str
    """The machine's name."""
    store: str
    """Path of its store."""


class Described(Line):
    """The circumstances of a step on the target."""

    kind: Literal["described"] = "described"
    libraries: dict[str, str]
    """Name -> version, as in keys."""
    machine: str
    """As in keys; empty if the step's result is the same on every machine."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    """As in `Foresight`."""


class Examined(Line):
    kind: Literal["examined"] = "examined"
    checks: tuple[Check, ...]


class Lacking(Line):
    kind: Literal["lacking"] = "lacking"
    artifacts: tuple[Digest, ...]
    """Digests of the artifacts that the node does not have."""
    files: dict[Digest, Count]
    """Digest of a file that they need -> number of its bytes that the node already has."""
    free_bytes: Count
    """Free space on its disk."""


class Kept(Line):
    kind: Literal["kept"] = "kept"
    kept: bool
    """False if a file did not arrive unchanged; the node has forgotten it."""


class Found(Line):
    kind: Literal["found"] = "found"
    records: tuple[StepRecord, ...]
    """Empty if one of them is missing."""


class Sent(Line):
    kind: Literal["sent"] = "sent"
    size_bytes: Count
    """Number of bytes that follow."""


class Trouble(Line):
    """The node could not answer: the disk is full, a file is damaged."""

    kind: Literal["trouble"] = "trouble"
    text: str


class Working(Line):
    """Progress of the first program, which creates the environment."""

    kind: Literal["progress"] = "progress"
    text: str


class Unusable(Line):
    """The first program cannot use its folder or its Python."""

    kind: Literal["refused"] = "refused"
    text: str


class New(Line):
    """The environment is missing: the facts on which its packages depend."""

    kind: Literal["new"] = "new"
    system: str
    architecture: str
    python: tuple[Annotated[int, Field(ge=0, le=99)], Annotated[int, Field(ge=0, le=99)]]
    libc: tuple[str, str]
    free_bytes: Count
    folder: str


class NotInstalled(Line):
    """The environment could not be created."""

    kind: Literal["failed"] = "failed"
    text: str
    """The last lines that pip printed."""


class Removed(Line):
    """The folder was removed."""

    kind: Literal["removed"] = "removed"
    bytes: Count
    folder: str


FirstReply = Working | Unusable | New | NotInstalled | Removed | Ready
"""Messages of the first program, and the first one of the node that it becomes."""
Question = Describe | Examine | Lack | Send | Keep | Find | Compute | Fetch | Alive
Reply = (
    Ready | Described | Examined | Lacking | Kept | Found | Sent | Trouble
    | Progressed | Logged | Waits | Stopped | Died | Done | Refused | Failed
)  # fmt: skip
End = Answer | Stopped | Died | Trouble
"""The end of a task."""

QUESTION: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="kind")])
FIRST_REPLY: TypeAdapter[FirstReply] = TypeAdapter(Annotated[FirstReply, Field(discriminator="kind")])
REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
"""Their `validate_json` raises what validators raise, pydantic's ValidationError among them."""
