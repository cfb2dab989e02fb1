"""Trials: the tests run on a copy of the project in which one place is changed."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Outcome = Literal["caught", "survived", "unfinished"]
"""`unfinished`: the time was up before a test failed. It counts as survived."""

_WAITS = 20
"""Time that a test may take, as a multiple of the limit of CPU time: other load must not look like a hang."""

_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_COLLECTION = "collection"
"""Stands for the name of a test where pytest failed before it ran one."""
_NO_TESTS = 5
"""pytest's exit code."""


@dataclass
class Copy:
    """A copy of the project's files, in which modules are changed and tests run.

    The working tree is never changed. Ignored files are not copied.
    """

    root: Path
    """The folder of the copy."""
    marks: str
    """pytest's `-m`."""
    limit_s: float
    """Seconds of CPU time that the tests of one change may take."""
    _sound: set[str] = field(default_factory=set)
    """Tests that pass without a change."""
    _unsound: set[str] = field(default_factory=set)
    """Tests that fail without a change: they catch nothing."""
    _writes: int = 0

    def try_change(self, module: Path, changed: str, tests: Sequence[Path]) -> tuple[Outcome, str]:
        """Return whether the tests catch a changed module, and the test that does."""
        original = (self.root / module).read_text(encoding="utf-8")
        while True:
            self._write(module, changed)
            try:
                failure = self._run([str(path) for path in tests])
            finally:
                self._write(module, original)
            if failure == "":
                return "survived", ""
            if failure is None:
                return "unfinished", f"no end within {self.limit_s:g} s of CPU time"
            if self._is_sound(failure, tests):
                return "caught", failure
            if failure == _COLLECTION:
                return "unfinished", "the tests cannot be collected without the change either"
            self._unsound.add(failure)

    def _is_sound(self, test: str, tests: Sequence[Path]) -> bool:
        """Return whether a test passes without the change. Without a test's name, collecting is what failed."""
        if test not in self._sound:
            names = [test] if test != _COLLECTION else ["--collect-only", *map(str, tests)]
            if self._run(names) != "":
                return False
            self._sound.add(test)
        return True

    def _run(self, arguments: Sequence[str]) -> str | None:
        """Run tests until one fails. Return its name, `""` where all pass, and None where the time was up."""
        deselected = [f"--deselect={test}" for test in sorted(self._unsound)]
        options = ["-x", "-q", "--tb=no", "-o", "addopts=", "-p", "no:cacheprovider", "-m", self.marks]
        options += [f"--timeout={_WAITS * self.limit_s:g}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *deselected, *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root), "COLUMNS": "1000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(self.limit_s), int(self.limit_s) + 1))
        try:
            output, _ = process.communicate(timeout=2 * _WAITS * self.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process)
        if process.returncode < 0:
            return None
        if process.returncode in (0, _NO_TESTS):
            return ""
        failure = _FAILURE.search(output)
        return failure[1] if failure and "::" in failure[1] else _COLLECTION

    def _write(self, module: Path, text: str) -> None:
        """Write a module with a time of its own: Python takes bytecode by the source's size and time in seconds."""
        path = self.root / module
        path.write_text(text, encoding="utf-8")
        self._writes += 1
        os.utime(path, (self._writes, self._writes))


def end_group(process: subprocess.Popen[str]) -> None:
    """End what a process started, and itself."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def copy_project(source: Path, folder: Path) -> Path:
    """Copy the files that git tracks or would track to a folder, and link data next to the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    root = folder / source.name
    for name in filter(None, listed.stdout.split("\0")):
        if (source / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, root / name)
    for shared in (source.parent / "shared", source.parent.parent / "shared"):
        if shared.is_dir():
            (folder / "shared").symlink_to(shared)
            break
    return root
