"""`ndld-flow` in a process that may die: reads command lines, writes the outcome of each."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.started_processes import SERVERS

_ROOT = Path(__file__).parents[2]
_SLACK_S = 20.0
"""A process begins with imports."""
_MOST_COMMANDS = 60
"""Of one process: threads and arenas of ONNX Runtime fill its address space, which is what can be limited."""
_MOST_LETTERS = 1500
"""Of a short paragraph."""


@dataclass(frozen=True)
class Ending:
    """The visible result of one command."""

    code: int | None
    """The exit code; negative for a signal, None where it did not end in time."""
    said: str
    """Standard error, and of a bug its traceback."""
    wall_s: float

    @property
    def is_refusal(self) -> bool:
        """Return whether it ended with one short paragraph: the request is invalid, or a worker was killed."""
        image = self.said.strip()
        return self.code in (2, 5) and image.startswith("error: ") and "\n" not in image and len(image) < _MOST_LETTERS

    @property
    def is_work(self) -> bool:
        """Done, or done and found wanting."""
        return self.code in (0, 1)

    @property
    def is_crash(self) -> bool:
        return self.code is not None and self.code < 0


class AttackedProcess:
    """Does one command line after another within a limit of memory; a new process follows one that died."""

    def __init__(self, memory_bytes: int = 4 * 2**30) -> None:
        self._memory_bytes = memory_bytes
        self._done = 0
        self._process: subprocess.Popen[str] | None = None

    def do(self, arguments: Sequence[str], folder: Path, limit_s: float = 60.0) -> Ending:
        """Run `ndld-flow` with these arguments, in a folder."""
        process, fresh = self._running()
        self._done += 1
        assert process.stdin is not None and process.stdout is not None
        started = time.perf_counter()
        print(json.dumps([str(folder), list(arguments)]), file=process.stdin, flush=True)
        wait_s = limit_s + (_SLACK_S if fresh else 0.0)
        ready, _, _ = select.select([process.stdout], [], [], wait_s)
        line = process.stdout.readline() if ready else ""
        wall_s = time.perf_counter() - started
        if not ready or not line:
            self.close()
            code = None if not ready else process.returncode
            return Ending(code, "it did not end" if not ready else "it died", wall_s)
        code, result = json.loads(line)
        return Ending(code, result, wall_s)

    def close(self) -> None:
        """End the process, and whatever it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()

    def _running(self) -> tuple[subprocess.Popen[str], bool]:
        if self._process is not None and self._process.poll() is None and self._done < _MOST_COMMANDS:
            return self._process, False
        self.close()
        self._done = 0
        command = [sys.executable, "-m", "tests.reliability.attacked_process", str(self._memory_bytes)]
        environment = {**os.environ, "NDLD_FLOW_IN_PROCESS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=_ROOT,
            env=environment,
            start_new_session=True,
        )
        SERVERS.add(self._process.pid)
        return self._process, True


def serve() -> None:
    """Do what comes in on standard input until it ends."""
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # libraries print what they like
    for line in sys.stdin:
        folder, arguments = json.loads(line)
        print(json.dumps(_do(arguments, Path(folder))), file=answers, flush=True)


def _do(arguments: list[str], folder: Path) -> tuple[int, str]:
    from tests.support.command_line import ndld_flow

    try:
        done = ndld_flow(*arguments, cwd=folder)
    except BaseException as error:
        return 3, f"not caught: {type(error).__name__}: {error}"
    errors = done.stderr
    if done.returncode == 3:
        written = Path(errors.rpartition("are in ")[2].partition(";")[0])
        if written.is_file():
            errors = f"{errors}{written.read_text()[-3000:]}"
            written.unlink()
    return done.returncode, errors


if __name__ == "__main__":
    serve()
