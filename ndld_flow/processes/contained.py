"""Detection of a contained process, which has no network and only the files of one project (`cli/contained.py`)."""

from __future__ import annotations

import os

VARIABLE = "NDLD_FLOW_CONTAINED"
"""Set in a contained process, and in those that it starts."""


def is_contained() -> bool:
    """Return whether this process is contained. It changes messages only: the kernel enforces the rest."""
    return VARIABLE in os.environ
