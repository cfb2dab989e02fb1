"""The switch that keeps all work in one process, for debuggers."""

from __future__ import annotations

import os

IN_PROCESS = "NDLD_FLOW_IN_PROCESS"
"""Environment variable; any value but `0` and the empty text turns it on."""


def is_one_process() -> bool:
    """Return whether all work stays in this process."""
    return os.environ.get(IN_PROCESS, "0") not in ("", "0")
