"""Loading of models by ONNX Runtime in a process of its own, as its optimizer may crash."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ndld_flow.base.errors import BackendError
from ndld_flow.machine.operator_libraries import libraries_in_use, register_libraries, using_libraries
from ndld_flow.processes.worker import claim_output


@dataclass(frozen=True)
class LoadFailure:
    """The reason why ONNX Runtime does not load a model."""

    message: str
    only_kernels: bool = False
    """True if the model is valid, and the CPU provider lacks a kernel for a node: a plugin's, or for its type."""
    crashed: bool = False
    """True if the process died."""


class _Loader:
    """A process that loads one model after the other: a start for each would take longer than most models."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def pid(self) -> int:
        """The process that loads; 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    def load(self, model: str | bytes, optimize: bool) -> LoadFailure | None:
        """Return the failure of loading a file or a serialized model. Raises `BackendError` for a library."""
        data = model if isinstance(model, bytes) else b""
        path = "" if isinstance(model, bytes) else str(Path(model).absolute())
        request = {"path": path, "bytes": len(data), "optimize": optimize, "libraries": libraries_in_use()}
        message = json.dumps(request).encode() + b"\n" + data
        with self._lock:
            # A process that died may have been ended from outside, or by an earlier model: only a new one proves it.
            line, death = self._ask(message)
            if not line:
                line, death = self._ask(message)
        if not line:
            return LoadFailure(f"it crashes ({death})", crashed=True)
        reply: dict[str, Any] = json.loads(line)
        if reply["library"]:
            raise BackendError(reply["library"])
        return None if reply["failure"] is None else LoadFailure(**reply["failure"])

    def _ask(self, message: bytes) -> tuple[bytes, str]:
        """Return the answer; if there is none, the way in which the process ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(message)
            process.stdin.flush()
        line = process.stdout.readline()
        return line, "" if line else _death(process)

    def close(self) -> None:
        """End the process of this process; a fork has a copy of its parent's."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            _close(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process.returncode = 0  # the process of the one that was forked, which ends it
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            _close(self._process)
            self._process = None
        if self._process is None:
            command = [sys.executable, "-P", "-m", __spec__.name]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._owner = os.getpid()
        return self._process


def _close(process: subprocess.Popen[bytes]) -> int:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    return process.wait()


def _death(process: subprocess.Popen[bytes]) -> str:
    """Return `SIGSEGV`, or `exit code 3`."""
    code = _close(process)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


LOADER = _Loader()
atexit.register(LOADER.close)


def serve(requests: IO[bytes], output: int) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        request = json.loads(line)
        model = request["path"] or requests.read(request["bytes"])
        reply: dict[str, Any] = {"failure": None, "library": ""}
        with using_libraries(request["libraries"]):
            try:
                reply["failure"] = _load(model, request["optimize"])
            except BackendError as error:
                reply["library"] = str(error)
        os.write(output, json.dumps(reply).encode() + b"\n")


def _load(model: str | bytes, optimize: bool) -> dict[str, str | bool] | None:
    import onnxruntime as ort  # not imported by the process that asks
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    register_libraries(options)
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base
        return {"message": str(error), "only_kernels": isinstance(error, NoKernelError)}
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its standard input
    serve(sys.stdin.buffer, claim_output())
