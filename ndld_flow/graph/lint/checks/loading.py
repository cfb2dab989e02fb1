"""Reading of the file by this package, ONNX and ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.models.changed_model import UNREGISTERED, examine_model, is_deprecated, runtime_message
from ndld_flow.models.files import check_model
from ndld_flow.records.inspection import Finding


class ExternalData(Check):
    """Missing, short or forbidden external data, and any other reason why the model cannot be loaded."""

    order = 10
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        if subject.load_error:
            check = self.name if "external data" in subject.load_error else "load"
            yield Finding(severity=self.severity, check=check, message=subject.load_error)


class OnnxChecker(Check):
    """Nodes that `onnx.checker` rejects, and the first other mistake that it reports.

    Tensors without a shape, graphs without a name, missing imports, and operators that ONNX does not have or has
    deprecated are reported by checks of their own.
    """

    order = 20
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        try:
            check_model(subject.path)
        except ModelError as error:
            if subject.model is None:
                rejected = str(error).removeprefix(f"{subject.path}: ")
            else:
                examination = examine_model(subject.path)
                rejected = examination.rejected
                for defect in examination.defects:
                    is_own = defect.tensor or defect.is_unknown or is_deprecated(defect.op_type, subject.opset)
                    if not is_own:
                        yield self.finding_at(defect.message, defect.node, defect.op_type)
            if rejected:
                yield self.finding_at(rejected, *named_node(rejected))


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
