"""Starts a working process, listens to it, and ends it with us."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_STDERR = "stderr.txt"
_NO_SPACE_BYTES = 2**16
_OS_ERROR = re.compile(r"(?:\[Errno |OSError\()(\d+)")
"""As Python tells one that nobody caught."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def name_signal(number: int) -> str:
    """`SIGSEGV`; empty for a number that is no signal's, or of one without a name."""
    return next((one.name for one in signal.Signals if one == number), "")


@dataclass(frozen=True)
class Ended:
    """How a working process ended."""

    code: int
    """Negative: the signal that killed it."""
    doing: str
    """What it said last."""
    folder: Path

    @property
    def signal_name(self) -> str:
        """`SIGSEGV`, or empty when it ended by itself."""
        if self.code >= 0:
            return ""
        return name_signal(-self.code) or f"signal {-self.code}"

    @property
    def said(self) -> str:
        """Its standard error, and what libraries printed."""
        return (self.folder / _STDERR).read_text(encoding="utf-8", errors="replace").strip()

    def died(self, what: str) -> Exception:
        """Why there is no answer although it ended by itself: the disk takes no more, or it has a bug of ours."""
        told = [int(number) for number in _OS_ERROR.findall(self.said)]
        if told and told[-1] in _DISK:
            return OSError(told[-1], os.strerror(told[-1]), str(self.folder))
        if shutil.disk_usage(self.folder).free < _NO_SPACE_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return RuntimeError(f"the {what} process ended with code {self.code} while {self.doing}:\n{self.said}")


def run_child(
    module: str, folder: Path, tell: Callable[[int, int, str], None], environment: Mapping[str, str] | None = None
) -> Ended:
    """Run `python -P -m MODULE FOLDER` until it ends; it reads its job from the folder and leaves its answer there.

    `tell(done, total, what)` hears the lines that it says by `child.begin`. `environment` is added to ours.
    Whatever happens here, the process and all it started have ended afterwards; when this process is killed, it ends
    by itself, as long as it began with `child.begin`.
    """
    process = _start(module, folder, environment)
    doing = "starting"
    try:
        for line in process.stdout or ():
            done, total, doing = line.decode(errors="replace").strip().split(" ", 2)
            tell(int(done), int(total), doing)
        process.wait()
    finally:
        end_group(process)
    return Ended(process.returncode, doing, folder)


class CommandedChild:
    """A working process that runs one command at a time: it reads a line and answers with a line.

    Leave the `with` block and the process and all it started have ended; it must end by itself at the end of its
    standard input, so that nothing is left when this process is killed.
    """

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._process = _start(module, folder, environment)
        self._folder = folder

    def __enter__(self) -> CommandedChild:
        return self

    def __exit__(self, *_: object) -> None:
        end_group(self._process)

    def send(self, command: str) -> None:
        """Give it a command. Whether it is still there, `receive` finds out."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()

    def receive(self, doing: str) -> str | Ended:
        """Wait for its next line; `Ended` if it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        self._process.wait()
        return Ended(self._process.returncode, doing, self._folder)


def _start(module: str, folder: Path, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    # -P: a file `json.py` in the current directory must not be imported.
    command = [sys.executable, "-P", "-m", module, str(folder)]
    with (folder / _STDERR).open("wb") as said:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
            # GPUs are counted as nvidia-smi counts them, unless who calls us wants CUDA's own order.
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ, **(environment or {})},
        )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started in a session of its own, and what it started, as far as they have not ended."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # none is left; macOS refuses for one that has just ended
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own is a group of its own
    elif process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a command that it did not live to read
                pipe.close()
