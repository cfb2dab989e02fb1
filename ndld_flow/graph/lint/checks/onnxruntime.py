"""Loading by ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.changed_model import runtime_message
from ndld_flow.records.inspection import Finding

# The model's path is passed as an argument: nothing from outside is interpreted. Without prepacking, which copies
# weights, external data are mapped and never read.
_LOAD = """
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
options.add_session_config_entry("session.disable_prepacking", "1")
try:
    ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
    sys.exit(2 if type(error).__name__ == "NotImplemented" else 1)
"""
_NO_KERNEL = 2
_NODE = re.compile(r"[Nn]ode:? ?\(?(?:name:)?'?(?P<name>[^\s')]+)")


class Onnxruntime(Check):
    """The reason why ONNX Runtime cannot load the model.

    A missing kernel or plugin is a warning: another device, TensorRT or a library may have it.
    """

    order = 910
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        process = subject.run_python("-c", _LOAD, str(subject.path.resolve()))
        if process.returncode == 0:
            return
        if process.returncode < 0 or not process.stdout.strip():
            yield self.finding(f"ONNX Runtime crashed while loading it (exit code {process.returncode})")
            return
        message = runtime_message(process.stdout)
        named = {node.name: node for node in subject.nodes() if node.name}
        match = _NODE.search(message)
        node = match["name"] if match else ""
        missing = subject.missing_library(message)
        if process.returncode == _NO_KERNEL or missing:
            needs = f"{missing} needs a plugin or a library" if missing else "on a CPU"
            message = f"not loaded here ({needs}): {message}"
            yield self.finding(message, named.get(node), severity="warning")
        else:
            yield self.finding(message, named.get(node))
