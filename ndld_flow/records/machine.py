"""Where something was measured."""

from __future__ import annotations

from ndld_flow.records.base import Record


class Machine(Record):
    """A machine's fingerprint: what must match before two measurements may be compared."""

    system: str
    architecture: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""
