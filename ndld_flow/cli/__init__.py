"""The command line: the program, and what its verbs (`ndld_flow.verbs`) share."""

from __future__ import annotations

import gc
import os
from typing import NoReturn

_COLLECT_AFTER = 100_000
"""New objects before Python looks for garbage, 700 by default: what is imported at the start never becomes garbage."""


def main() -> NoReturn:
    """Run the program; exit with the code of its outcome."""
    gc.set_threshold(_COLLECT_AFTER)
    # pydantic would look for plugins of its own in the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from ndld_flow.cli.app import main as run_program

    run_program()
