"""Messages between this machine and the node, and files on their way into a store.

What has arrived of a file stays, so that a transfer continues where it broke off. It is written under the digest of its
whole contents; what does not match its digest is never stored. Processes of one sender write the same bytes at the same
offsets, so they need no lock.

Each question is answered before the next one is asked. The contents of files follow their message as bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import Field, JsonValue, TypeAdapter

from ndld_flow.execution.messages import Alive, End, News, Refused
from ndld_flow.machine.host import Check
from ndld_flow.processes.lines import Line
from ndld_flow.records.document import Count, Digest, InnerPath
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.files import make_folder
from ndld_flow.store.store import Store

ALIVE_EVERY_S = 20.0
"""Seconds between the messages of a sender that has nothing to ask."""
CHUNK_BYTES = 2**20
_FORGET_AFTER_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Incoming:
    """Incomplete files of a store."""

    store: Store
    sender: str = ""
    """The sender, if there are several: one must not write into a file that another sends."""

    def size(self, digest: Digest) -> int:
        """Return the number of a file's bytes that have arrived."""
        try:
            return self._path(digest).stat().st_size
        except OSError:
            return 0

    def write(self, digest: Digest, offset: int, chunks: Iterator[bytes]) -> None:
        """Write a file's bytes from an offset on. Takes all chunks, also after an error. Raises OSError."""
        try:
            make_folder(self._path(digest).parent)
            opened = os.open(self._path(digest), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.seek(offset)
                for chunk in chunks:
                    file.write(chunk)
        finally:
            for _ in chunks:
                pass

    def keep(self, artifact: ArtifactRecord) -> bool:
        """Store an artifact whose files have arrived; False, and they are forgotten, if one is not what it should be.

        Raises OSError.
        """
        if self.store.is_intact(artifact):
            return True
        paths = [self._path(file.digest) for file in artifact.files]
        with self.store.building() as folder:
            built = folder / "received"
            try:
                for file, path in zip(artifact.files, paths, strict=True):
                    target = built / file.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(OSError):
                        os.link(path, target)
                        continue
                    shutil.copyfile(path, target)
                kept = self.store.keep(artifact.kind, built).digest == artifact.digest
            except FileNotFoundError:
                kept = False
        for path in paths:
            path.unlink(missing_ok=True)
        return kept

    def forget_old(self) -> None:
        """Remove files of transfers that nobody has continued for a week."""
        for path in (self.store.root / "incoming").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _FORGET_AFTER_S:
                    path.unlink()

    def _path(self, digest: Digest) -> Path:
        sender = f".{blake3(self.sender.encode()).hexdigest()[:16]}" if self.sender else ""
        return self.store.root / "incoming" / f"{digest}{sender}"


def read_chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield `size` bytes as `read(at_most)` returns them. Raises EOFError when they end early."""
    while size:
        chunk = read(min(size, CHUNK_BYTES))
        if not chunk:
            raise EOFError
        size -= len(chunk)
        yield chunk


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


class Working(Line):
    """Progress of the first program, which creates the environment."""

    kind: Literal["progress"] = "progress"
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


FirstReply = Working | Refused | New | NotInstalled | Ready
"""Messages of the first program, and the first one of the node that it becomes."""
Question = Describe | Examine | Lack | Send | Keep | Find | Compute | Fetch | Alive
Reply = Ready | Described | Examined | Lacking | Kept | Found | Sent | News | End

QUESTION: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="kind")])
FIRST_REPLY: TypeAdapter[FirstReply] = TypeAdapter(Annotated[FirstReply, Field(discriminator="kind")])
REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
"""Their `validate_json` raises what validators raise, pydantic's ValidationError among them."""
