"""Names of the users of this machine."""

from __future__ import annotations

import os
import sys


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
