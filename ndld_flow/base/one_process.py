"""Whether all is to be done in one process, where a debugger can follow it."""

from __future__ import annotations

import os

IN_PROCESS = "NDLD_FLOW_IN_PROCESS"
"""Environment variable: anything but `0` and nothing says yes."""


def is_one_process() -> bool:
    return os.environ.get(IN_PROCESS, "0") not in ("", "0")
