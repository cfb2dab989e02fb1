"""Virtual environments with pip, copied from one: `python -m venv` installs pip each time, for seven seconds of CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from ndld_flow.runtimes import environments

make_environment = environments._make_environment
"""The function before tests replace it."""


class Copies:
    """A function that replaces `make_environment`; workers of a test run share the environment that it copies."""

    def __init__(self, template: Path) -> None:
        self._template = template

    def __call__(self, folder: Path, note: Callable[[str], None]) -> str:
        done = self._template / "done"
        with FileLock(f"{self._template}.lock"):
            if not done.exists():
                python = Path(make_environment(self._template, note))
                for script in [path for path in python.parent.iterdir() if not path.name.startswith("python")]:
                    script.unlink()  # they hold the path of the template
                done.touch()
        shutil.copytree(self._template, folder, symlinks=True, dirs_exist_ok=True)
        return str(folder / "bin/python")
