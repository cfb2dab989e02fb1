"""Where something was measured."""

from __future__ import annotations

from ndld_flow.records.base import Record


class Machine(Record):
    """A machine's fingerprint: what must match before two measurements may be compared.

    A text is empty where it is not known.
    """

    system: str
    architecture: str
    cpu: str
    cpu_count: int | None
    """None where it is not known, as memory."""
    memory_bytes: int | None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""
