"""Unknown and deprecated operators."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.files import assumed_version
from ndld_flow.models.model_defects import is_deprecated, is_plugin, unknown_operator
from ndld_flow.models.op_reference import operators
from ndld_flow.records.inspection import Finding, Severity

_ORT_DOMAINS = (
    "com.microsoft",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
)


def _severity(node: onnx.NodeProto) -> Severity:
    """Return `error` for an operator that no runtime is known to have."""
    is_known = ("", node.op_type) in operators()
    return "warning" if is_known or is_plugin(node) else "error"


class UnknownOp(Check):
    """Operators that are unknown or deprecated at the model's opset, and those that need a library."""

    order = 50
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        opset = subject.opset or assumed_version("", bool(subject.proto.opset_import), subject.proto.ir_version)
        functions = {(function.domain, function.name) for function in subject.proto.functions}
        for node in subject.nodes():
            if (node.domain, node.op_type) in functions or node.domain in _ORT_DOMAINS:
                continue
            if node.domain not in ("", "ai.onnx"):
                message = f"operator of domain {node.domain!r} needs a custom operator library or a plugin"
                yield self.finding(message, node, severity="warning")
            elif not onnx.defs.has(node.op_type, opset):
                yield self.finding(unknown_operator(node, opset), node, severity=_severity(node))
            elif is_deprecated(node.op_type, opset):
                yield self.finding(f"{node.op_type} is deprecated at opset {opset}; convert the model", node)
