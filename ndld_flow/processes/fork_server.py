"""Calls functions in processes that are forked from a server, which has imported what the functions need.

A new Python needs one to three seconds for the imports of a step; a fork takes milliseconds, and a crash ends only the
fork. The server itself opens no model, so that no thread and no device is inherited. Systems other than Linux start a
new Python for each call: there, libraries do not survive a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.processes.launch import END_S, STDERR, CommandWorker, ProcessEnd
from ndld_flow.processes.worker import IN_PROCESS, claim_input, claim_output, run_under_watchdog

FRAMES = "frames.txt"
"""The stack of Python at a crash, as faulthandler writes it."""
_IMPORTED = "imported.json"
LEFT = (STDERR, FRAMES, _IMPORTED)
"""Files that a call leaves in its folder."""
_SAFE = (
    "ndld_flow",
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "polygraphy",
    "pydantic",
    "sympy",
    "yaml",
)
"""Packages that the server imports once a call has needed them: they start no threads and open no device."""
_POLL_S = 0.002
_SERVER = "ndld_flow.processes.fork_server"


@dataclass(frozen=True)
class CallEnd(ProcessEnd):
    """The end of a call."""

    timed_out: bool

    @property
    def frame(self) -> str:
        """Return the innermost function of Python at a crash, as `file.py in function`; empty if it is unknown."""
        with contextlib.suppress(OSError):
            for line in (self.folder / FRAMES).read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("  File "):
                    path, _, function = line[7:].rpartition(" in ")
                    return f"{Path(path.split(chr(34))[1]).name} in {function}"
        return ""


class ForkServer:
    """Calls functions, each in a process of its own. At the end of the `with` block, all processes are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._worker: CommandWorker | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *details: object) -> None:
        if self._worker is not None:
            self._worker.__exit__(*details)
        self._worker = None

    def call(self, function: str, folder: Path, timeout_s: float) -> CallEnd:
        """Call `package.module:function` with a folder, in the current directory, and wait for its end.

        The function reads what it needs from the folder, and writes its results there. Raises RuntimeError if the
        server has ended, which is a bug.
        """
        if self._worker is None:
            self._worker = CommandWorker(_SERVER, self.folder, {IN_PROCESS: "1"}, END_S)
        order = {"function": function, "folder": str(folder.absolute()), "timeout_s": timeout_s, "cwd": str(Path.cwd())}
        self._worker.send(f"{json.dumps(order)}\n")
        answer = self._worker.receive(function)
        if isinstance(answer, ProcessEnd):
            raise answer.died("fork server")
        code, timed_out = json.loads(answer)
        return CallEnd(code, function, folder, timed_out)


def main() -> None:
    """Answer the orders of standard input, one a line, until it ends."""
    run_under_watchdog()
    output, orders = claim_output(), os.fdopen(claim_input(), "rb")
    for line in orders:
        order = json.loads(line)
        folder = Path(order["folder"])
        os.chdir(order["cwd"])
        ended = (_fork if sys.platform.startswith("linux") else _spawn)(order["function"], folder, order["timeout_s"])
        # The next calls need not import what a call has imported.
        with contextlib.suppress(OSError, ValueError):
            for name in json.loads((folder / _IMPORTED).read_text(encoding="utf-8")):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        os.write(output, f"{json.dumps(ended)}\n".encode())


def _fork(function: str, folder: Path, timeout_s: float) -> tuple[int, bool]:
    called = _import(function)
    child = os.fork()
    if not child:
        _run(called, folder)
    deadline, timed_out = time.monotonic() + timeout_s, False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if not timed_out and time.monotonic() > deadline:
            timed_out = True
            os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)
    with contextlib.suppress(OSError):  # its children, apart from those in other sessions, which end with its pipes
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), timed_out


def _run(called: Callable[[Path], None], folder: Path) -> None:
    """Call a function in a process that was forked for it, and end the process."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        # The output of libraries, and the stack at a crash, go to files.
        descriptor = os.open(folder / STDERR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        faulthandler.enable((folder / FRAMES).open("w"), all_threads=False)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # Python's own generator is seeded by the fork
        before = set(sys.modules)
        called(folder)
        imported = [name for name in sys.modules if name not in before and name.partition(".")[0] in _SAFE]
        (folder / _IMPORTED).write_text(json.dumps(imported), encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _spawn(function: str, folder: Path, timeout_s: float) -> tuple[int, bool]:
    command = [sys.executable, "-P", "-m", _SERVER, function, str(folder)]
    try:
        return subprocess.run(command, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL).returncode, False
    except subprocess.TimeoutExpired:
        return -signal.SIGTERM, True


def _import(function: str) -> Callable[[Path], None]:
    module, _, name = function.partition(":")
    called: Callable[[Path], None] = getattr(importlib.import_module(module), name)
    return called


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _run(_import(sys.argv[1]), Path(sys.argv[2]))
    main()
