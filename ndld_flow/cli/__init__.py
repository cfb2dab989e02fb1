"""The command line. Each verb is one small file that calls one function of `ndld_flow.api`."""

from __future__ import annotations

from gc import set_threshold  # `gc` is a verb of this package
from typing import NoReturn

_COLLECT_AFTER = 100_000
"""New objects before Python looks for garbage, 700 by default: what is imported at the start never becomes garbage."""


def main() -> NoReturn:
    """Run the program; exit with the code of its outcome."""
    set_threshold(_COLLECT_AFTER)
    from ndld_flow.cli.app import main as run_program

    run_program()
