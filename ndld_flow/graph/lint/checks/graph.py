"""Names, what nothing reads, shapes, and operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node, names_read, names_read_by
from ndld_flow.models.changed_model import is_deprecated, is_plugin, tensors_without_shape, unknown_operator
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import DEFAULT_DOMAIN, MAX_IR_VERSION, MAX_OPSET, OLDEST_OPSET, assumed_version, dims_of
from ndld_flow.models.nodes import fixed_tensor
from ndld_flow.models.op_reference import operators
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import UNNAMED_DIM
from ndld_flow.records.inspection import Finding, Severity


class DuplicateName(Check):
    """Nodes with the same name, and tensors with two producers."""

    order = 60

    def find(self, subject: Subject) -> Iterator[Finding]:
        names = Counter(node.name for graph in subject.graphs() for node in graph.node if node.name)
        for name, count in names.items():
            if count > 1:
                yield self.finding_at(f"{count} nodes have this name; selecting it by name is ambiguous", name, "")
        for graph in subject.graphs():
            produced = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for node in graph.node:
                for name in node.output:
                    if name and name in produced:
                        yield self.finding(f"tensor {name!r} has a second producer", node, severity="error")
                    produced.add(name)


class MissingName(Check):
    """A model's graph without a name, and the number of nodes without one, by type."""

    order = 70
    severity = "info"

    def find(self, subject: Subject) -> Iterator[Finding]:
        if not subject.proto.graph.name:
            yield self.finding(
                "the graph has no name, which ONNX requires; every step gives it one", severity="warning"
            )
        types = Counter(node.op_type for node in subject.nodes() if not node.name)
        for op_type, count in types.most_common():
            nodes = "node has" if count == 1 else "nodes have"
            message = f"{count} {op_type} {nodes} no name and cannot be selected by name; `sanitize` gives them one"
            yield self.finding_at(message, "", op_type)


class UnusedNode(Check):
    """Nodes that no output depends on."""

    order = 80

    def find(self, subject: Subject) -> Iterator[Finding]:
        for graph in subject.graphs():
            wanted = {output.name for output in graph.output}
            for node in reversed(graph.node):
                if wanted.isdisjoint(name for name in node.output if name):
                    yield self.finding("no output depends on it; `sanitize` removes it", node)
                else:
                    wanted.update(names_read_by(node))


class UnusedInitializer(Check):
    """Initializers that nothing reads."""

    order = 90

    def find(self, subject: Subject) -> Iterator[Finding]:
        for graph in subject.graphs():
            read = names_read(graph)
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                if tensor.name not in read:
                    yield self.finding(f"initializer {tensor.name!r} is read by no node")


class UnusedInput(Check):
    """Inputs of the model that nothing reads."""

    order = 100

    def find(self, subject: Subject) -> Iterator[Finding]:
        graph = subject.proto.graph
        known = names_read(graph) | {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            if value.name not in known:
                yield self.finding(f"input {value.name!r} is read by no node")


class ShapeInference(Check):
    """The first contradiction that strict shape inference finds.

    It is a warning in a model that ONNX Runtime loads: some of onnx's rules are wrong, and runtimes ignore others.
    """

    order = 30
    severity = "error"
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        try:
            infer_shapes(subject.model, strict=True)
        except ModelError as error:
            severity: Severity = "warning" if subject.loading.returncode == 0 else self.severity
            yield self.finding_at(str(error), *named_node(str(error)), severity=severity)


class MissingShape(Check):
    """Inputs, outputs and other tensors that are declared without a shape: runtimes take their rank as unknown."""

    order = 75

    def find(self, subject: Subject) -> Iterator[Finding]:
        for _, message in tensors_without_shape(subject.proto.graph):
            yield self.finding(message)


class DynamicOutput(Check):
    """Outputs whose size depends on the input's: engines then need profiles."""

    order = 110
    severity = "info"

    def find(self, subject: Subject) -> Iterator[Finding]:
        for value in subject.proto.graph.output:
            if not (value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")):
                yield self.finding(f"output {value.name!r} has no shape")
                continue
            dims = value.type.tensor_type.shape.dim
            if not all(dim.HasField("dim_value") for dim in dims):
                texts = (str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
                yield self.finding(f"output {value.name!r} is dynamic: [{', '.join(texts)}]")


class AmbiguousDim(Check):
    """Dimensions named `?`: TensorRT and other tools take them all as equal."""

    order = 115

    def find(self, subject: Subject) -> Iterator[Finding]:
        count = sum(dim.dim_param == UNNAMED_DIM for graph in subject.graphs() for dim in dims_of(graph))
        if count:
            have = "1 dimension has" if count == 1 else f"{count} dimensions have"
            yield self.finding(
                f"{have} the name {UNNAMED_DIM!r}, which Paddle's exporters give to dimensions of different sizes. "
                "TensorRT requires dimensions of one name to be equal. Steps treat these as unnamed, and `sanitize` "
                "removes the names"
            )


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
                is_known = ("", node.op_type) in operators() or is_plugin(node)  # to some runtime
                yield self.finding(unknown_operator(node, opset), node, severity="warning" if is_known else "error")
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
