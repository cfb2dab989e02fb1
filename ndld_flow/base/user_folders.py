"""Folders of this user, outside any project."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for files that can be fetched or computed again; it may not exist. Raises RuntimeError if the
    user has no home folder.
    """
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ndld_flow" / "cache"
    if sys.platform == "darwin":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / "Library" / "Caches") / "ndld_flow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ndld_flow"
