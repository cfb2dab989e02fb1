"""Runs of the command line in separate processes, without the seconds that importing everything again takes.

A server that has imported what a run needs is forked for each of them: a process with its own id, signals and streams,
which begins where `ndld-flow` begins.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import ClassVar

_ROOT = Path(__file__).parent.parent.parent


class ProcessRun:
    """`ndld-flow` with these arguments in a folder, started: with a terminal of this path, or with files as streams."""

    started: ClassVar[list[ProcessRun]] = []
    """Those that this test started."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str], terminal: str = "") -> None:
        self._said = Path(tempfile.mkdtemp(dir=cwd, prefix=".said-"))
        for name in ("out", "err", "stacks"):
            (self._said / name).touch()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.warm_process"])
        with contextlib.chdir(_ROOT):  # from where the server finds it
            forkserver.ensure_running()
        self._process: ForkServerProcess = context.Process(
            target=_begin, args=(arguments, cwd, dict(env), self._said, terminal)
        )
        self._process.start()
        self.started.append(self)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; `None` while it runs."""
        return self._process.exitcode

    @property
    def told(self) -> str:
        """Standard output until now."""
        return (self._said / "out").read_text()

    @property
    def warned(self) -> str:
        """Standard error until now."""
        return (self._said / "err").read_text()

    @property
    def has_terminal(self) -> bool:
        """Whether it has opened its terminal, which may now be closed here."""
        return (self._said / "has_terminal").exists()

    def send_signal(self, which: signal.Signals) -> None:
        """Send a signal unless the process has ended, as `Popen` does."""
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, which)

    def finish(self, limit_s: float) -> tuple[int, str, str]:
        """Exit code, standard output and standard error. Raises `TimeoutError` when it takes longer."""
        self._process.join(limit_s)
        code = self.poll()
        if code is None:
            self.send_signal(signal.SIGUSR1)
            self._process.join(1)
            self._process.kill()
            stacks, last = ((self._said / name).read_text()[-8000:] for name in ("stacks", "err"))
            raise TimeoutError(f"it runs after {limit_s} s; its last output:\n{last}\nits threads:\n{stacks}")
        return code, (self._said / "out").read_text(), (self._said / "err").read_text()


def _begin(arguments: tuple[str, ...], folder: Path, env: Mapping[str, str], path: Path, terminal: str) -> None:
    from ndld_flow.cli import main

    sys.stdout.flush()
    sys.stderr.flush()
    if terminal:
        os.setsid()  # the terminal that is opened next sends Ctrl-C to this process
        for number in range(3):
            os.dup2(os.open(terminal, os.O_RDWR), number)
        sys.stdin = os.fdopen(0)
        (path / "has_terminal").touch()
    else:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(path / name, os.O_WRONLY | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    faulthandler.register(signal.SIGUSR1, (path / "stacks").open("w"))
    tempfile.tempdir = None
    os.chdir(folder)
    os.environ.update(env)
    sys.argv = ["ndld-flow", *arguments]
    main()
