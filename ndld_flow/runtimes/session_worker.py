"""A process that holds a session and runs it on command (`session_process.py` starts it).

`python -P -m ndld_flow.runtimes.session_worker FOLDER` reads `FOLDER/job.json`, opens the model, and answers each line
on standard input with a line of JSON: it binds the arrays in `FOLDER/feeds`, runs them, and writes `FOLDER/outputs`. It
ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.processes import worker as process
from ndld_flow.runtimes.registry import find_runtime

JOB, FEEDS, OUTPUTS = "job.json", "feeds", "outputs"


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
    output = process.claim_output()

    def answer(**values: object) -> None:
        os.write(output, f"{json.dumps(values)}\n".encode())

    try:
        job = json.loads((folder / JOB).read_text(encoding="utf-8"))
        session = find_runtime(job["runtime"]).read_request(job["session"]).open(Path(job["model"]))
        answer(facts=asdict(session.describe()), load_ms=session.load_ms, log=session.log)
        for _ in sys.stdin:
            binding = session.bind(
                {name: array for name, array in read_arrays(folder / FEEDS).items() if array is not None}
            )
            binding.run()
            write_arrays(folder / OUTPUTS, binding.outputs())
            answer(log=session.log)
    except NdldFlowError as error:
        answer(error=type(error).__name__, message=str(error))
    except MemoryError:
        answer(
            error="KilledError",
            message="the process that ran the model was short of memory: free some, or raise its limit.",
        )
    process.exit_worker()


if __name__ == "__main__":
    main()
