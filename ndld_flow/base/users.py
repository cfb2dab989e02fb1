"""Names of the users of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def name_me() -> str:
    """Return the name of the user of this process; empty on a system without numbers of users."""
    return name_user(os.geteuid()) if sys.platform != "win32" else ""


def name_user(number: int) -> str:
    """Return the name of a user, or the number if there is no name."""
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def cache_folder() -> Path:
    """Return the folder for files that can be fetched or computed again; it may not exist. Raises RuntimeError if the
    user has no home folder.
    """
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ndld_flow" / "cache"
    if sys.platform == "darwin":
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / "Library" / "Caches") / "ndld_flow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ndld_flow"
