"""The result of a check of this machine."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.document import Record


class Check(Record):
    """The result of one check."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent`: only some recipes need it; `broken`: every run needs it."""
    found: str
    advice: str = ""
