"""Worker processes that try models, and are replaced when a model ends them or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any

from ndld_flow.processes.worker import IN_PROCESS
from tests.support.model_trials.judge import Fault
from tests.support.model_trials.subjects import Subject
from tests.support.model_trials.trial import LOADED, Outcome, Trial

_MEMORY = Path("/dev/shm")
"""Results of small models are in memory: a run waits for the disk more often than it computes."""
_MODELS = 200
"""Models after which a process is replaced: libraries keep some memory of each."""


def serve(connection: Connection) -> None:
    """Try the models that arrive, until None arrives. A worker process."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    os.environ[IN_PROCESS] = "1"
    while (request := connection.recv()) is not None:
        subject, skipped = request
        in_memory = subject.group in ("generated", "backend") and _MEMORY.is_dir()
        tempfile.tempdir = str(_MEMORY) if in_memory else None
        with tempfile.TemporaryDirectory() as folder:
            Trial(subject, Path(folder), skipped, connection.send).run()
        connection.send(None)


class Worker:
    """A worker process, replaced when it crashes or a model takes too long."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._process: Any = None
        self._served = 0
        self._is_closed = False

    def examine(self, subject: Subject) -> list[Outcome]:
        """Return the outcomes of everything on a model, the last of which is `LOADED`."""
        outcomes: dict[str, Outcome] = {}
        skipped: set[str] = set()
        while (blamed := self._attempt(subject, skipped, outcomes)) is not None:
            operation, fault = blamed
            name = operation or LOADED
            outcomes[name] = Outcome(subject.name, subject.group, name, fault, "")
            if name in skipped or not operation:
                break
            skipped.add(operation)
        last = outcomes.pop(LOADED, Outcome(subject.name, subject.group, LOADED, "crashed", "not examined to the end"))
        return [*outcomes.values(), last]

    def _attempt(self, subject: Subject, skipped: set[str], outcomes: dict[str, Outcome]) -> tuple[str, Fault] | None:
        """Examine a model; return the operation that ended the process or the time, if any, and how."""
        self._prepare()
        self._connection.send((subject, skipped | set(outcomes)))
        current = ""
        while self._connection.poll(self.limit_s):
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self._end()
                return current, "crashed"
            if message is None:
                return None
            if isinstance(message, str):
                current = message
            else:
                outcomes[message.operation] = message
        self._end()
        return current, "time out"

    def _prepare(self) -> None:
        if self._is_closed:
            raise RuntimeError("the worker is closed")
        if self._served == _MODELS and self._process is not None:
            self._end()
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=False)
            self._process.start()
            theirs.close()
            self._served = 0
        self._served += 1

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def close(self) -> None:
        """End the process, whatever it is doing, and start no other."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()


def examine_all(subjects: Sequence[Subject], workers: int, limit_s: float) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each model, in the order in which they finish."""
    free: Queue[Worker] = Queue()
    pool = [Worker(limit_s) for _ in range(workers)]
    for worker in pool:
        free.put(worker)

    def examine(subject: Subject) -> list[Outcome]:
        worker = free.get()
        try:
            return worker.examine(subject)
        finally:
            free.put(worker)

    threads = ThreadPoolExecutor(workers)
    try:
        for finished in as_completed([threads.submit(examine, subject) for subject in subjects]):
            yield finished.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in pool:
            worker.close()
