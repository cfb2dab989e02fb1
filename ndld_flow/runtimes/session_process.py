"""Sessions in a process of their own: a library of another environment is imported there, and may crash there."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ndld_flow.base import errors
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.processes.launch import CommandWorker, ProcessEnd
from ndld_flow.runtimes import session_worker
from ndld_flow.runtimes.protocol import HostBinding, Session, SessionFacts, SessionRequest
from ndld_flow.runtimes.session_worker import FEEDS, JOB, OUTPUTS, read_arrays, write_arrays


def open_session(request: SessionRequest, model: Path, scratch: Path) -> Session:
    """Open a model, in a process of its own if the request needs one; its files are written into `scratch`.

    Raises as `SessionRequest.open` does, and `KilledError` if the process dies.
    """
    if not request.needs_process:
        return request.open(model)
    return SessionProcess(request, model, scratch)


class SessionProcess(HostBinding):
    """A session in another process; with inputs bound, it is its own binding. It ends with `close`, or with this one.

    Methods raise the exceptions of the session there, and `KilledError` if its process dies.
    """

    def __init__(self, request: SessionRequest, model: Path, scratch: Path) -> None:
        self._request, self._model = request, model
        self._folder = Path(tempfile.mkdtemp(prefix="session-", dir=scratch))
        job = {"runtime": request.runtime, "session": request.to_json(), "model": model}
        (self._folder / JOB).write_text(json.dumps(job, default=str), encoding="utf-8")
        self._worker = CommandWorker(session_worker.__name__, self._folder, request.environment(self._folder))
        self._end = weakref.finalize(self, self._worker.__exit__)
        opened = self._receive("opening it")
        self.load_ms: float = opened["load_ms"]
        raw = opened["facts"]
        specs = {name: tuple(_read_spec(spec) for spec in raw[name]) for name in ("inputs", "outputs")}
        self._facts = SessionFacts(**{**raw, **specs, "devices": tuple(raw["devices"]), "notes": tuple(raw["notes"])})
        self._outputs: dict[str, Array | None] = {}

    def describe(self) -> SessionFacts:
        return self._facts

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> SessionProcess:
        """Keep the inputs for the next run, which raises `RequestError` if they do not fit."""
        write_arrays(self._folder / FEEDS, feeds)
        return self

    def run(self) -> None:
        """Run one pass, and read its outputs."""
        self._worker.send("run")
        self._receive("running it")
        self._outputs = read_arrays(self._folder / OUTPUTS)

    def outputs(self) -> dict[str, Array | None]:
        return self._outputs

    def close(self) -> None:
        """End the process."""
        self._end()

    def _receive(self, doing: str) -> dict[str, Any]:
        line = self._worker.receive(doing)
        if isinstance(line, ProcessEnd):
            names = self._request.names()
            task = f"ran {self._model} in {names.library}"
            raise line.died(names.library, task, names.library, f"{names.crash_advice}.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            error: Exception = getattr(errors, answer["error"])(answer["message"])
            raise error
        self.log: str = answer["log"]
        return answer


def _read_spec(raw: dict[str, Any]) -> TensorSpec:
    shape = None if raw["shape"] is None else tuple(raw["shape"])
    return TensorSpec(**{**raw, "shape": shape, "known_texts": tuple(raw["known_texts"])})
