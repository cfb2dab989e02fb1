"""Worker processes without the seconds that starting Python and importing libraries take.

A server that has imported what measuring needs is forked for each worker: a process with its own id, session, streams
and environment, which begins where `python -P -m MODULE FOLDER` begins. `executed_workers` is for tests of
processes themselves.

`python -P -m tests.support.forked_workers DESCRIPTOR` is the server; the descriptor is that of a listening socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from pydantic import BaseModel

from ndld_flow.graph.lint.check import Subject, TimeLimitError
from ndld_flow.machine.host import GPU_ORDER

_ROOT = Path(__file__).parents[2]
_AT_START = ("LD_", "POLYGRAPHY_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")
"""Beginnings of variables that are read when a process or a library starts: each set of values has its own server."""


class Servers:
    """Servers of a test process, by the variables that they started with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[tuple[tuple[str, str], ...], tuple[Path, subprocess.Popen[bytes]]] = {}
        self._starting = threading.Lock()

    def pids(self) -> list[int]:
        return [process.pid for _, process in self._servers.values()]

    def start(self, module: str, folder: Path, environment: Mapping[str, str] | None) -> Any:
        """Start a worker, as `ndld_flow.processes.launch` does; return what it needs of a `Popen`."""
        added = dict([GPU_ORDER], **os.environ) | dict(environment or {})
        return self._fork({"module": module, "arguments": [str(folder)]}, added, Path.cwd(), folder / "stderr.txt")

    def run_python(self, subject: Subject, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a check, `-c CODE ARGUMENT...`, as `Subject.run_python` does."""
        option, code, *rest = arguments
        assert option == "-c"
        with tempfile.NamedTemporaryFile("r", errors="replace") as errors:
            order = {"code": code, "arguments": rest}
            worker = self._fork(order, os.environ, Path(tempfile.gettempdir()), Path(errors.name))
            limit = threading.Timer(max(subject.deadline - time.monotonic(), 0.1), worker.kill)
            limit.start()
            worker.stdin.close()
            with worker.stdout:
                output = worker.stdout.read().decode(errors="replace")
            worker.wait()
            limit.cancel()
            if time.monotonic() >= subject.deadline and worker.returncode == -signal.SIGKILL:
                raise TimeLimitError
            return subprocess.CompletedProcess(arguments, worker.wait(), output, errors.read())

    def _fork(
        self, order: Mapping[str, object], environment: Mapping[str, str], cwd: Path, errors: Path
    ) -> _ForkedWorker:
        variables = dict(environment)
        paths = variables.pop("PYTHONPATH", "").split(os.pathsep)
        surroundings = {"cwd": str(cwd), "paths": paths, "environment": variables}
        return _ForkedWorker(self._address(variables), {**order, **surroundings}, errors)

    def _address(self, variables: Mapping[str, str]) -> Path:
        key = tuple(sorted((name, value) for name, value in variables.items() if name.startswith(_AT_START)))
        with self._starting:  # tests build in threads
            if key not in self._servers:
                address = self._folder / str(len(self._servers))
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(address))
                    listener.listen()
                    process = subprocess.Popen(
                        [sys.executable, "-P", "-m", __name__, str(listener.fileno())],
                        stdin=subprocess.PIPE,
                        env={**variables, "PYTHONPATH": str(_ROOT)},
                        pass_fds=[listener.fileno()],
                        cwd=_ROOT,
                    )
                self._servers[key] = address, process
            return self._servers[key][0]

    def end(self) -> None:
        for _, process in self._servers.values():
            process.kill()
            process.communicate()


class _ForkedWorker:
    """A child of a server, used as a `Popen`."""

    def __init__(self, address: Path, order: Mapping[str, object], errors: Path) -> None:
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        """Several threads may wait, as for a `Popen`."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(address))
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        with errors.open("wb") as output:
            socket.send_fds(self._connection, [b"x"], [theirs_in, theirs_out, output.fileno()])
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin: IO[bytes] = os.fdopen(ours_in, "wb")
        self.stdout: IO[bytes] = os.fdopen(ours_out, "rb")
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._waiting:
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _serve(listener: socket.socket) -> None:
    """Fork a worker for each connection, and report its end to it; end with standard input."""
    awake, wake = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    workers: dict[int, socket.socket] = {}
    watched: list[Any] = [listener, awake, 0]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready:
            return
        if awake in ready:
            os.read(awake, 4096)
            _report_ends(workers)
        if listener in ready:
            connection, _ = listener.accept()
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            order = connection.makefile("rb").readline()
            child = os.fork()
            if child == 0:
                _begin(json.loads(order), streams, [listener.fileno(), awake, wake, connection.fileno()])
            for stream in streams:
                os.close(stream)
            workers[child] = connection
            connection.sendall(b"%d\n" % child)


def _report_ends(workers: dict[int, socket.socket]) -> None:
    while workers:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with contextlib.closing(workers.pop(child)) as connection, contextlib.suppress(OSError):
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _begin(order: Mapping[str, Any], streams: list[int], others: list[int]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for number in (*streams, *others):
            os.close(number)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        tempfile.tempdir = None
        sys.path[:0] = [path for path in order["paths"] if path]
        sys.argv = ["-c", *order["arguments"]]
        if "module" in order:
            sys.modules.pop(order["module"], None)  # it is run again, under the name of a main module
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        else:
            exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            output.flush()
    os._exit(code)


def _import_libraries() -> None:
    """Import what the workers import, and open no session: its threads would not survive a fork.

    pydantic completes a class at its first use, which would be in each worker again.
    """
    from polygraphy.tools.check.subtool import lint  # noqa: F401

    import ndld_flow.engines.engine_building
    import ndld_flow.measure.trial_pass
    import ndld_flow.measure.turn_worker
    import ndld_flow.measure.worker
    import ndld_flow.processes.fork_server
    import ndld_flow.reduce.bodies
    import ndld_flow.reduce.inspect_model
    import ndld_flow.reduce.trials
    import ndld_flow.runtimes.onnxruntime.onnxruntime_session  # noqa: F401
    from ndld_flow.base.settings import Settings
    from ndld_flow.records.document import Record
    from tests.support.sleeping_threads import let_threads_sleep

    let_threads_sleep()
    kinds: list[type[BaseModel]] = [Settings, Record]
    while kinds:
        kind = kinds.pop()
        kind.model_rebuild()
        kinds += kind.__subclasses__()


if __name__ == "__main__":
    _import_libraries()
    _serve(socket.socket(fileno=int(sys.argv[1])))
