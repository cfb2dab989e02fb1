"""The record of a shard: one of several processes, on one machine or many, that share the points of a sweep."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ndld_flow.records.document import VERSIONS, Digest, Document, Record


class ShardMachine(Record):
    """The machine of a shard, as the keys of its steps describe it."""

    where: str
    """The machines on which results of these steps are reused: `this_machine`, `this_host`, ..."""
    device: str
    """The device that these steps use, such as `cpu`; empty if they use none."""
    description: str


class ShardFailure(Record):
    """A point that an error ended. Errors are not stored as results."""

    number: int
    """The point's number in the whole sweep."""
    step: str
    """The step that failed; empty if the point cannot run at all."""
    message: str
    exit_code: int
    blames: str
    """The step that the error names; empty if it names none, so that a measurement session is split to find it."""


class ShardRecord(Document):
    """The state of a shard, rewritten after each batch of points. The results themselves are in the store."""

    document: Literal["shard"] = "shard"
    format_version: int = VERSIONS["shard"]
    sweep: Digest
    """Digest of the sweep: models, settings, data, axes and objectives, without the machine and its libraries."""
    recipe_name: str
    index: int
    """From 1."""
    count: int
    """Number of shards."""
    user: str
    host: str
    process: int
    started_at: datetime
    updated_at: datetime
    """Time at which its last batch of points was finished, or its start."""
    tried: int
    """Number of points that it has tried."""
    point_count: int
    """Number of points that it has to try."""
    stopped_because: str = ""
    """The reason why it will try no more points; empty while it runs, and if it was killed."""
    on: str = ""
    """The target of `--on`, on which its steps that need a device ran; empty for none."""
    machines: tuple[ShardMachine, ...] = ()
    """The shard's own machine. What ran on targets is keyed by these."""
    versions: dict[str, str] = {}
    """Versions of the libraries that its steps use."""
    failures: tuple[ShardFailure, ...] = ()
    keys: tuple[Digest, ...] = ()
    """Keys of the results that its points use; `gc` keeps them."""

    @property
    def name(self) -> str:
        """Return `2/4`."""
        return f"{self.index}/{self.count}"
