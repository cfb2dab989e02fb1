"""The process in which `changed_model` lets ONNX Runtime load models.

`python -P -m ndld_flow.processes.load_server` reads requests from standard input: a line of JSON, and the bytes of a
model without a path. It imports ONNX Runtime and little else, as most runs with a new model wait for its start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO, Any

from ndld_flow.base.errors import BackendError
from ndld_flow.machine.operator_libraries import register_libraries, using_libraries
from ndld_flow.processes.worker import claim_output


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
    import onnxruntime as ort
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
