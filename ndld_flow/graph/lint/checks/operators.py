"""Operators and versions that runtimes do not have."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import DEFAULT_DOMAIN, MAX_IR_VERSION, MAX_OPSET, OLDEST_OPSET, assumed_version
from ndld_flow.models.model_defects import is_deprecated, is_plugin, unknown_operator
from ndld_flow.models.nodes import fixed_tensor
from ndld_flow.models.op_reference import operators
from ndld_flow.records.inspection import Finding, Severity


class Versions(Check):
    """Versions that not every ONNX Runtime loads, or guarantees to run.

    They are warnings: the check `onnxruntime` tries the one that is installed.
    """

    order = 40
    severity = "warning"

    def find(self, subject: Subject) -> Iterator[Finding]:
        version, opset = subject.proto.ir_version, subject.opset
        newest = "is newer than the newest that ONNX Runtime 1.31 loads"
        if version > MAX_IR_VERSION:
            yield self.finding(f"IR version {version} {newest} ({MAX_IR_VERSION})")
        if opset > MAX_OPSET:
            yield self.finding(f"opset {opset} {newest} ({MAX_OPSET})")
        if 0 < opset < OLDEST_OPSET:
            oldest = f"is older than the oldest that ONNX Runtime guarantees to run ({OLDEST_OPSET})"
            yield self.finding(f"opset {opset} {oldest}")


class MissingImport(Check):
    """Domains whose operators the model uses without an import of a version."""

    order = 45

    def find(self, subject: Subject) -> Iterator[Finding]:
        imported = {entry.domain or DEFAULT_DOMAIN for entry in subject.proto.opset_import}
        nodes = (node for graph in subject.graphs() for node in graph.node)
        used = dict.fromkeys(node.domain or DEFAULT_DOMAIN for node in nodes)
        for domain in used.keys() - imported:
            version = assumed_version(domain, bool(imported), subject.proto.ir_version)
            yield self.finding(
                f"the operators of {domain!r} are used, but no version of them is imported; steps import version "
                f"{version}, and `set_opset` of `edit` another one",
                severity="warning" if imported else "error",
            )


_ORT_DOMAINS = (
    "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml", "ai.onnx.preview.training",
)  # fmt: skip


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


class TrainingMode(Check):
    """BatchNormalization and Dropout in training mode: results depend on the batch, or are random."""

    order = 160
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        for node in subject.model.graph.all_nodes():
            training = node.attributes.get("training_mode")
            if is_op(node, "BatchNormalization") and training is not None and training.value:
                message = "it is in training mode: it uses the mean and variance of the batch, not those of the model"
                yield self.finding_at(f"{message}; export in inference mode", node.name or "", node.op_type)
            mode = fixed_tensor(node.inputs[2]) if is_op(node, "Dropout") and len(node.inputs) > 2 else None
            if mode is not None and mode.numpy().any():
                message = "it is in training mode: it sets random values to 0; export in inference mode"
                yield self.finding_at(message, node.name or "", node.op_type)
