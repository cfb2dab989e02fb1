"""Starts worker processes, reads their messages, and ends them with this process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import KilledError
from ndld_flow.base.lazy_pattern import lazy_pattern
from ndld_flow.base.text import short_name, shortened

STDERR = "stderr.txt"
_NO_SPACE_BYTES = 2**16
_OS_ERROR = lazy_pattern(r"(?:\[Errno |OSError\()(\d+)")
"""The form of an uncaught OSError in a traceback."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def name_signal(number: int) -> str:
    """Return the name of a signal, such as `SIGSEGV`; empty for an unknown number."""
    return next((known.name for known in signal.Signals if known == number), "")


@dataclass(frozen=True)
class ProcessEnd:
    """The end of a worker process."""

    code: int
    """Exit code; negative: the signal that killed it."""
    doing: str
    """Its last reported activity."""
    folder: Path

    @property
    def signal_name(self) -> str:
        """Return the name of the signal that killed it; empty if it exited."""
        if self.code >= 0:
            return ""
        return name_signal(-self.code) or f"signal {-self.code}"

    @property
    def output(self) -> str:
        """Return its standard error and the output of libraries."""
        return (self.folder / STDERR).read_text(encoding="utf-8", errors="replace").strip()

    def died(
        self, what: str, task: str = "", suspect: str = "", advice: str = "", last_line: str | None = None
    ) -> Exception:
        """Return the error for a process that ended without an answer: a signal, a full disk, or a bug.

        `task` is what it did ("measured MODEL on cpu"), `suspect` the code that crashed; without a task, a signal is a
        bug too. The last line of its output is shown unless another one is given.
        """
        if self.signal_name and task:
            reason = "the system may be short of memory" if self.signal_name == "SIGKILL" else f"{suspect} crashed"
            line = (self.output.splitlines() or [""])[-1] if last_line is None else last_line
            last = f" Last output: {shortened(line, 300).rstrip('. ')}." if line else ""
            return KilledError(
                f"the process that {task} was killed by {self.signal_name} while {short_name(self.doing)}: {reason}."
                f"{last} {advice}"
            )
        numbers = [int(number) for number in _OS_ERROR.findall(self.output)]
        if numbers and numbers[-1] in _DISK:
            return OSError(numbers[-1], os.strerror(numbers[-1]), str(self.folder))
        if shutil.disk_usage(self.folder).free < _NO_SPACE_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return RuntimeError(f"the {what} process ended with code {self.code} while {self.doing}:\n{self.output}")


def run_worker_module(
    module: str,
    folder: Path,
    report: Callable[[int, int, str], None],
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> ProcessEnd:
    """Run `python -P -m MODULE FOLDER` until it ends; it reads its job from the folder and writes its answer there.

    `report(done, total, what)` is called for its progress lines (see `worker.start_worker`). `environment` is added to
    ours; after `timeout_s` the process is killed. In any case it and all its descendants have ended afterwards; when
    this process is killed, it ends by itself, if it has called `worker.start_worker`.
    """
    process = _start(module, folder, environment)
    doing = "starting"
    limit = threading.Timer(timeout_s or 0.0, process.kill)
    if timeout_s is not None:
        limit.start()
    try:
        for line in process.stdout or ():
            done, total, doing = line.decode(errors="replace").strip().split(" ", 2)
            report(int(done), int(total), doing)
        process.wait()
    finally:
        limit.cancel()
        end_group(process)
    return ProcessEnd(process.returncode, doing, folder)


class CommandWorker:
    """A worker process that runs one command at a time: it reads a line and answers with a line.

    At the end of the `with` block, the process and all its descendants are ended. It must exit at the end of its
    standard input, so that nothing is left when this process is killed.
    """

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._process = _start(module, folder, environment)
        self._folder = folder

    def __enter__(self) -> CommandWorker:
        return self

    def __exit__(self, *_: object) -> None:
        end_group(self._process)

    def send(self, command: str) -> None:
        """Send a command. `receive` notices if the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()

    def receive(self, doing: str) -> str | ProcessEnd:
        """Return its next line, or `ProcessEnd` if it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        self._process.wait()
        return ProcessEnd(self._process.returncode, doing, self._folder)


def _start(module: str, folder: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    # -P: a file `json.py` in the current directory must not be imported.
    command = [sys.executable, "-P", "-m", module, str(folder)]
    with (folder / STDERR).open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            # GPUs are numbered as in nvidia-smi, unless the user has chosen CUDA's own order.
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ, **(environment or {})},
        )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started in a new session, and its descendants in that session."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # none is left; macOS fails for a group that has just ended
            os.killpg(process.pid, signal.SIGKILL)  # a new session is a new process group
    elif process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a command that it did not read
                pipe.close()
