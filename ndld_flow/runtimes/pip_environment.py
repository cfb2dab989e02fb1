"""Virtual environments into which pip installs packages, from the index that the user has configured for it."""

from __future__ import annotations

import contextlib
import ensurepip
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ndld_flow.base.errors import RequestError

PIP_TIMEOUT_S = 3600.0
"""TensorRT and CUDA's libraries have several GB."""
_COUNTS_BYTES = "24.1"
"""The first pip that prints its progress as lines."""
_NOT_PIPS = ("PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH")
"""Variables that would install elsewhere, or show the private environment the packages of this one."""


class PipError(Exception):
    """pip could not install or fetch something; the text is its last error."""

    def __init__(self, reason: str, lines: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.lines = lines
        """All that it printed."""


def create_environment(
    target: Path, requirements: Sequence[str], report: Callable[[str], None], options: Sequence[str] = ()
) -> None:
    """Create a virtual environment with pip, and let that install requirements; `report` is called with its output.

    An environment of its own, because NVIDIA's packages of older releases call pip again while they are installed:
    with `--target` that would install into ours. Raises PipError.
    """
    with _noting(report) as note:
        install = [_make_environment(target, note), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        _run([*install, *options, "--", *requirements], note)


def ask_pip(arguments: Sequence[str], report: Callable[[str], None]) -> None:
    """Run pip, which installs nothing; `report` is called with each line of its output. Raises PipError.

    Lines `Progress 1 of 3` count the bytes of a large file, if pip can print them.
    """
    from packaging.version import Version  # not for runs without environments

    with tempfile.TemporaryDirectory(prefix="ndld-flow-pip-") as folder, _noting(report) as note:
        if find_spec("pip"):
            python, release = sys.executable, version("pip")
        else:  # such as in an environment of uv's
            python, release = _make_environment(Path(folder), note), ensurepip.version()
        bar = "raw" if Version(release) >= Version(_COUNTS_BYTES) else "off"
        _run([python, "-m", "pip", *arguments, "--progress-bar", bar], note)


def _make_environment(folder: Path, note: Callable[[str], None]) -> str:
    """Make a virtual environment with pip; return its Python."""
    _run([sys.executable, "-m", "venv", str(folder)], note)
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def _run(command: Sequence[str], note: Callable[[str], None]) -> None:
    from ndld_flow.processes.launch import Program, run_program

    # Ours, with the index of this Python's own pip.conf.
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_PIPS}
    own = Path(sys.prefix, "pip.ini" if os.name == "nt" else "pip.conf")
    if own.is_file():
        ours.setdefault("PIP_CONFIG_FILE", str(own))
    # Without the current directory on its path, where a file `pip.py` could be.
    ours |= {"PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run_program(Program(command, ours, PIP_TIMEOUT_S), note)


@contextlib.contextmanager
def _noting(report: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that notes and reports a line. Raises PipError where a program fails, with the last error that
    is in its lines by then."""
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        report(line)

    try:
        yield note
    except RequestError as error:
        reasons = [line for line in lines if line.startswith("ERROR: ")] or [error.message]
        raise PipError(reasons[-1].removeprefix("ERROR: "), lines) from None
