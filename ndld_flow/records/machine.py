"""The machine of a measurement."""

from __future__ import annotations

from ndld_flow.records.base import Record


class Machine(Record):
    """A machine's description, which must match before two measurements may be compared. Unknown texts are empty."""

    system: str
    architecture: str
    cpu: str
    cpu_count: int | None
    """None where it is unknown, as is memory."""
    memory_bytes: int | None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""
