"""Loading by ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.lint.check import Check, Subject
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
    sys.exit(1)
"""
_NODE = re.compile(r"[Nn]ode:? ?\(?(?:name:)?'?(?P<name>[^\s')]+)")


class Onnxruntime(Check):
    """The reason why ONNX Runtime cannot load the model."""

    order = 910
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        process = subject.run_python("-c", _LOAD, str(subject.path.resolve()))
        if process.returncode == 0:
            return
        if process.returncode < 0 or not process.stdout.strip():
            yield self.finding(f"ONNX Runtime crashed while loading it (exit code {process.returncode})")
            return
        message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", one_paragraph(process.stdout))
        names = {node.name: node.op_type for node in subject.nodes() if node.name}
        match = _NODE.search(message)
        node = match["name"] if match and match["name"] in names else ""
        yield self.finding_at(message, node, names.get(node, ""))
