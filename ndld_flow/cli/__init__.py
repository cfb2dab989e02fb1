"""The command line. Each verb is one small file that calls one function of `ndld_flow.api`.

Nothing is imported here before it is known which of three ways answers the command: the text of `--help`, the receipt
of an earlier command, or the program.
"""

from __future__ import annotations

import os
import sys
from gc import set_threshold  # `gc` is a verb of this package

TYPE_CHECKING = False  # `typing` takes as long to import as the rest of `--help`
if TYPE_CHECKING:
    from typing import NoReturn

REPEATED = ("run", "plan", "schema", "steps", "ops")
"""Verbs whose unchanged commands are answered from a receipt."""
HELP = f"{os.path.dirname(__file__)}/help.txt"  # noqa: PTH120 - pathlib takes long to import, too
"""The output of `--help` on a terminal of 80 columns or more: `ndld-flow --debug --help` computes it."""
_FULL_WIDTH = 80
_COLLECT_AFTER = 100_000
"""New objects before Python looks for garbage, 700 by default: what is imported at the start never becomes garbage."""


def main() -> NoReturn:
    """Print the help, repeat an unchanged command's output, or run the program; exit with the code of its outcome."""
    if sys.argv[1:] in (["--help"], ["-h"]) and _print_help():
        sys.exit(0)
    set_threshold(_COLLECT_AFTER)
    if len(sys.argv) > 1 and sys.argv[1] in REPEATED:
        from ndld_flow.cli.replay import replay

        try:
            exit_code = replay(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(130)
        if exit_code is not None:
            sys.exit(exit_code)
    _keep_pydantic_from_plugins()
    from ndld_flow.cli.app import main as run_program

    run_program()


def _print_help() -> bool:
    """Print the kept help; return False where the program must print it: narrower, for a shell, or with an error."""
    if "COLUMNS" in os.environ or "_NDLD_FLOW_COMPLETE" in os.environ:
        return False
    try:
        if os.isatty(1) and os.get_terminal_size(1).columns < _FULL_WIDTH:
            return False
        with open(HELP, "rb") as file:  # noqa: PTH123
            text = file.read()
        while text:  # without a buffer, so that after an error the program can try, and explain it
            text = text[os.write(1, text) :]
    except OSError:
        return False
    return True


def _keep_pydantic_from_plugins() -> None:
    """Replace the module in which pydantic looks for its plugins by one without any.

    Otherwise pydantic reads the metadata of all installed distributions, and imports `importlib.metadata` for it: a
    twentieth of the time of a plan. Its variable PYDANTIC_DISABLE_PLUGINS avoids neither that import nor an effect on
    the programs that steps start. The API leaves pydantic to the program that uses it.
    """
    from types import ModuleType

    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = lambda: ()  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)
