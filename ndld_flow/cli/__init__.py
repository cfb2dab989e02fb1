"""The command line. Each verb is one small file that calls one function of `ndld_flow.api`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Repeat the output of an unchanged `run`, or run the program; exit with the code of its outcome."""
    if sys.argv[1:2] == ["run"]:
        from ndld_flow.cli.replay import replay

        try:
            exit_code = replay(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(130)
        if exit_code is not None:
            sys.exit(exit_code)
    from ndld_flow.cli.app import main as run_program

    run_program()
