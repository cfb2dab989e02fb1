"""Loading by ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.models.changed_model import UNREGISTERED, runtime_message
from ndld_flow.records.inspection import Finding

_NO_KERNEL = 2
_NODE = re.compile(r"[Nn]ode:? ?\(?(?:name:)?'?(?P<name>[^\s')]+)")


class Onnxruntime(Check):
    """The reason why ONNX Runtime cannot load the model.

    A missing kernel or plugin is a warning: another device, TensorRT or a library may have it.
    """

    order = 910
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        process = subject.loading
        if process.returncode == 0:
            return
        if process.returncode < 0 or not process.stdout.strip():
            yield self.finding(f"ONNX Runtime crashed while loading it (exit code {process.returncode})")
            return
        message = runtime_message(process.stdout)
        named = {node.name: node for node in subject.nodes() if node.name}
        match = _NODE.search(message)
        node = match["name"] if match else ""
        missing = "" if libraries_in_use() and UNREGISTERED not in message else subject.missing_library(message)
        if process.returncode == _NO_KERNEL or missing:
            needs = f"{missing} needs a plugin or a library" if missing else "on a CPU"
            message = f"not loaded here ({needs}): {message}"
            yield self.finding(message, named.get(node), severity="warning")
        else:
            yield self.finding(message, named.get(node))
