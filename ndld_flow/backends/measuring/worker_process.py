"""Starts measuring processes, listens to them, and ends them with us."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ndld_flow import errors
from ndld_flow.backends.measuring import worker
from ndld_flow.backends.measuring.worker_job import Answer, Job
from ndld_flow.errors import BackendError

_STDERR = "stderr.txt"
_NO_SPACE_BYTES = 2**16


def run_worker(job: Job, folder: Path, tell: Callable[[int, int, str], None]) -> Answer:
    """Do a job in a fresh process whose files lie in `folder`, which is made.

    Raises what the worker raised: `ModelError`, `BackendError` or `RequestError`; `BackendError` too when it died.
    Whatever happens here, the worker has ended afterwards; when this process is killed, it ends by itself.
    """
    folder.mkdir(parents=True)
    job.write(folder / worker.JOB)
    # -P: a file `json.py` where the user stands must not be imported.
    command = [sys.executable, "-P", "-m", worker.__name__, str(folder)]
    with (folder / _STDERR).open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
    doing = "starting"
    try:
        for line in process.stdout or ():
            done, total, doing = line.decode(errors="replace").strip().split(" ", 2)
            tell(int(done), int(total), doing)
        process.wait()
    finally:
        _end(process)
    answer = Answer.read(folder)
    if answer is None:
        raise _died(job, process.returncode, doing, folder)
    if answer.error:
        raise getattr(errors, answer.error)(answer.message)
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and what it started, unless it has ended."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):  # macOS refuses for one that has just ended
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own is a group of its own
        else:
            process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _died(job: Job, code: int, doing: str, folder: Path) -> Exception:
    said = (folder / _STDERR).read_text(encoding="utf-8", errors="replace").strip()
    if code >= 0 and shutil.disk_usage(folder).free < _NO_SPACE_BYTES:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if code >= 0:
        # It should have answered: a bug of ours, with its traceback.
        return RuntimeError(f"the measuring process ended with code {code} while {doing}:\n{said}")
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    why = "the system may be short of memory" if name == "SIGKILL" else "ONNX Runtime or a library of it crashed"
    last = f" Its last words: {said.splitlines()[-1][:300]}." if said else ""
    return BackendError(
        f"the process that measured {job.model} on {job.session.provider} died of {name} while {doing}: {why}.{last} "
        "Try another provider or optimization, or fewer threads."
    )
