"""Sessions in a process of their own: a library of another environment is imported there, and may crash there.

`python -P -m ndld_flow.runtimes.session_process FOLDER` reads `FOLDER/job.json`, opens the model, and answers each line
on standard input with a line of JSON: it binds the arrays in `FOLDER/feeds`, runs them, and writes `FOLDER/outputs`. It
ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.base import errors
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype
from ndld_flow.processes import worker as process
from ndld_flow.processes.launch import CommandWorker, ProcessEnd
from ndld_flow.processes.lines import Line, Output
from ndld_flow.runtimes.protocol import HostBinding, Session, SessionFacts, SessionRequest
from ndld_flow.runtimes.registry import find_runtime

JOB, FEEDS, OUTPUTS = "job.json", "feeds", "outputs"


class SessionJob(Line):
    """A model to open."""

    runtime: str
    session: dict[str, Any]
    """The values that the runtime's `read_request` reads."""
    model: Path


class Answer(Line):
    """The end of a task: of opening the model, or of one run."""

    facts: SessionFacts | None = None
    """The description of the opened model."""
    load_ms: float = 0.0
    log: str = ""
    """Messages of the library so far."""
    error: str = ""
    """Name of a class in `errors`; empty without an error."""
    message: str = ""


Answer.model_rebuild(_types_namespace={"SessionFacts": SessionFacts, "TensorSpec": TensorSpec})


def write_arrays(path: Path, arrays: Mapping[str, Array | None]) -> None:
    """Write arrays by name, also of texts and of ml_dtypes, whose types `.npy` files do not have; None stays None."""
    entries: list[dict[str, Any]] = []
    with path.open("wb") as file:
        for name, array in arrays.items():
            entry: dict[str, Any] = {"name": name, "dtype": ""}
            if array is not None and array.dtype.kind in "OU":
                entry |= {"texts": array.ravel().tolist(), "shape": array.shape}
            elif array is not None:
                entry |= {"dtype": array.dtype.name, "shape": array.shape, "offset": file.tell()}
                file.write(np.ascontiguousarray(array).tobytes())
            entries.append(entry)
    path.with_suffix(".json").write_text(json.dumps(entries), encoding="utf-8")


def read_arrays(path: Path) -> dict[str, Array | None]:
    """Return the arrays that `write_arrays` wrote."""
    data = path.read_bytes()
    arrays: dict[str, Array | None] = {}
    for entry in json.loads(path.with_suffix(".json").read_text(encoding="utf-8")):
        if "texts" in entry:
            arrays[entry["name"]] = np.array(entry["texts"], np.str_).reshape(entry["shape"])
            continue
        dtype = numpy_dtype(entry["dtype"]) if entry["dtype"] else None
        if dtype is None:
            arrays[entry["name"]] = None
            continue
        count = int(np.prod(entry["shape"], dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, entry["offset"]).reshape(entry["shape"])
    return arrays


def main() -> None:
    """Open the model, then run it until standard input ends."""
    folder = Path(sys.argv[1])
    output = Output()
    try:
        job = SessionJob.from_line((folder / JOB).read_bytes())
        session = find_runtime(job.runtime).read_request(job.session).open(job.model)
        output.send(Answer(facts=session.describe(), load_ms=session.load_ms, log=session.log))
        for _ in sys.stdin:
            binding = session.bind(
                {name: array for name, array in read_arrays(folder / FEEDS).items() if array is not None}
            )
            binding.run()
            write_arrays(folder / OUTPUTS, binding.outputs())
            output.send(Answer(log=session.log))
    except NdldFlowError as error:
        output.send(Answer(error=type(error).__name__, message=str(error)))
    except MemoryError:
        short = "the process that ran the model was short of memory: free some, or raise its limit."
        output.send(Answer(error="KilledError", message=short))
    process.exit_worker()


if __name__ == "__main__":
    main()


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
        job = SessionJob(runtime=request.runtime, session=request.to_json(), model=model)
        (self._folder / JOB).write_text(job.to_line(), encoding="utf-8")
        self._worker = CommandWorker(__name__, self._folder, request.environment(self._folder))
        self._end = weakref.finalize(self, self._worker.__exit__)
        opened = self._receive("opening it")
        assert opened.facts is not None
        self.load_ms, self._facts = opened.load_ms, opened.facts
        self._outputs: dict[str, Array | None] = {}

    def describe(self) -> SessionFacts:
        return self._facts

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> SessionProcess:
        """Keep the inputs for the next run, which raises `RequestError` if they do not fit."""
        write_arrays(self._folder / FEEDS, feeds)
        return self

    def run(self) -> None:
        """Run one pass, and read its outputs."""
        self._worker.send("run\n")
        self._receive("running it")
        self._outputs = read_arrays(self._folder / OUTPUTS)

    def outputs(self) -> dict[str, Array | None]:
        return self._outputs

    def close(self) -> None:
        """End the process."""
        self._end()

    def _receive(self, doing: str) -> Answer:
        line = self._worker.receive(doing)
        if isinstance(line, ProcessEnd):
            names = self._request.names()
            task = f"ran {self._model} in {names.library}"
            raise line.died(names.library, task, names.library, f"{names.crash_advice}.")
        answer = Answer.from_line(line)
        if answer.error:
            error: Exception = getattr(errors, answer.error)(answer.message)
            raise error
        self.log = answer.log
        return answer
