"""Start of measuring processes and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ndld_flow.base import errors
from ndld_flow.base.errors import KilledError
from ndld_flow.measure import worker
from ndld_flow.measure.worker_job import Answer, Job
from ndld_flow.processes.launch import ProcessEnd, run_worker_module


def run_worker(
    job: Job, folder: Path, progress: Callable[[int, int, str], None], environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a job in a new process with its files in `folder`, which is created; `environment` is added to ours.

    Raises the worker's exception, `ModelError`, `BackendError` or `RequestError`; `KilledError` when it was killed. The
    worker has always ended afterwards; when this process is killed, it ends by itself.
    """
    folder.mkdir(parents=True)
    job.write(folder / worker.JOB)
    ended = run_worker_module(worker.__name__, folder, progress, environment)
    answer = Answer.read(folder)
    if answer is None or answer.error:
        raise failure_of(job, ended)
    return answer


def failure_of(job: Job, ended: ProcessEnd) -> Exception:
    """Return the exception of a measuring process that ended without an answer, or the reason of its death."""
    answer = Answer.read(ended.folder)
    if answer is not None and answer.error:
        error: Exception = getattr(errors, answer.error)(answer.message)
        return error
    return _died(job, ended)


def _died(job: Job, ended: ProcessEnd) -> Exception:
    if not ended.signal_name:
        return ended.died("measuring")
    killed = ended.signal_name == "SIGKILL"
    names = job.session.names()
    why = "the system may be short of memory" if killed else f"{names.library} or a library of it crashed"
    last = f" Its last words: {ended.output.splitlines()[-1][:300]}." if ended.output else ""
    return KilledError(
        f"the process that measured {job.model} on {names.device} died of {ended.signal_name} while "
        f"{ended.doing}: {why}.{last} {names.crash_advice}."
    )
