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
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Outcome = Literal["caught", "survived", "unfinished"]
"""`unfinished`: the time was up before a test failed, and no test hangs. It counts as survived."""

_WAITS = 20
"""Time that a test may take, as a multiple of the limit of CPU time: other load must not look like a hang."""

_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_COLLECTION = "collection"
"""Stands for the name of a test where pytest failed before it ran one."""
_STARTED = re.compile(r"^(tests/\S+?\.py::.+?) *(?:[A-Z]+ *(?:\[ *\d+%\])?)?$", re.MULTILINE)
"""The name of each test in pytest's output, which begins before the test does."""
_NO_TESTS = 5
_NO_SUCH_TEST = 4
"""pytest's exit codes."""


@dataclass(frozen=True)
class _Run:
    """How tests ended."""

    failure: str | None
    """The first test that failed; empty where all passed, None where the time was up."""
    last: str = ""
    """The test that ran when the time was up."""


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

    def try_change(self, module: Path, changed: str, tests: Sequence[str]) -> tuple[Outcome, str]:
        """Return whether the tests catch a changed module, and the test that does.

        Tests are files, or pytest's identifiers. A test without end catches the change, if it passes without it.
        """
        original = (self.root / module).read_text(encoding="utf-8")
        while True:
            self._write(module, changed)
            try:
                run = self._run(tests)
                if run.failure is None and run.last:
                    run = replace(self._run([run.last]), last=run.last)
            finally:
                self._write(module, original)
            failure = run.last if run.failure is None else run.failure
            if not failure:
                is_late = run.failure is None or run.last
                return ("unfinished", f"no end within {self.limit_s:g} s of CPU time") if is_late else ("survived", "")
            if self._is_sound(failure, tests):
                return "caught", failure if run.failure else f"{failure} has no end"
            if failure == _COLLECTION:
                return "unfinished", "the tests cannot be collected without the change either"
            self._unsound.add(failure)

    def run_all(self, workers: int) -> None:
        """Run the tests of all files, whatever their results."""
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-m", self.marks, "-n", str(workers)]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options],
                cwd=self.root,
                env=self._environment(),
                stdout=output,
                text=True,
                start_new_session=True,
            )
            try:
                process.wait()
            finally:
                end_group(process)

    def _is_sound(self, test: str, tests: Sequence[str]) -> bool:
        """Return whether a test passes without the change. Without a test's name, collecting is what failed."""
        if test not in self._sound:
            names = [test] if test != _COLLECTION else ["--collect-only", *tests]
            if self._run(names).failure != "":
                return False
            self._sound.add(test)
        return True

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.root), "COLUMNS": "1000"}

    def _run(self, arguments: Sequence[str]) -> _Run:
        """Run tests until one fails."""
        deselected = [f"--deselect={test}" for test in sorted(self._unsound)]
        options = ["-x", "-v", "--tb=no", "-o", "addopts=", "-p", "no:cacheprovider", "-m", self.marks]
        options += [f"--timeout={_WAITS * self.limit_s:g}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *deselected, *arguments],
            cwd=self.root,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(self.limit_s), int(self.limit_s) + 1))
        is_late = False
        try:
            process.communicate(timeout=2 * _WAITS * self.limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            output = end_group(process)
        if is_late or process.returncode < 0:
            return _Run(None, next(reversed(_STARTED.findall(output)), ""))
        if process.returncode in (0, _NO_TESTS):
            return _Run("")
        if process.returncode == _NO_SUCH_TEST and any("[" in test for test in arguments):
            return self._run(list(dict.fromkeys(test.partition("[")[0] for test in arguments)))
        failure = _FAILURE.search(output)
        return _Run(failure[1] if failure and "::" in failure[1] else _COLLECTION)

    def _write(self, module: Path, text: str) -> None:
        """Write a module with a time of its own: Python takes bytecode by the source's size and time in seconds."""
        path = self.root / module
        path.write_text(text, encoding="utf-8")
        self._writes += 1
        os.utime(path, (self._writes, self._writes))


def end_group(process: subprocess.Popen[str]) -> str:
    """End what a process started, and itself; return its output."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


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
