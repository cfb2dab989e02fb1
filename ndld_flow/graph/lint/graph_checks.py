"""Checks of the graph: names, unused parts, operators, versions, dynamic outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ndld_flow.graph.lint.subject import Subject, about, graphs_in, subgraphs
from ndld_flow.models.files import MAX_IR_VERSION, MAX_OPSET
from ndld_flow.records.inspection import Finding

_OLDEST_OPSET = 7
"""Oldest opset that ONNX Runtime guarantees to run."""
_ORT_DOMAINS = (
    "com.microsoft",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
)


def unused_nodes(subject: Subject) -> Iterator[Finding]:
    """Find nodes that no output depends on."""
    for graph in subject.graphs():
        wanted = {output.name for output in graph.output}
        for node in reversed(graph.node):
            if wanted.isdisjoint(name for name in node.output if name):
                yield about("unused_node", "warning", "no output depends on it; `sanitize` removes it", node)
            else:
                wanted.update(_reads(node))


def unused_initializers(subject: Subject) -> Iterator[Finding]:
    """Find initializers that nothing reads."""
    for graph in subject.graphs():
        read = _names_read(graph)
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            if tensor.name not in read:
                yield about("unused_initializer", "warning", f"initializer {tensor.name!r} is read by no node")


def unused_inputs(subject: Subject) -> Iterator[Finding]:
    """Find inputs of the model that nothing reads."""
    graph = subject.proto.graph
    read = _names_read(graph)
    initialized = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in read and value.name not in initialized:
            yield about("unused_input", "warning", f"input {value.name!r} is read by no node")


def _names_read(graph: onnx.GraphProto) -> set[str]:
    return {output.name for output in graph.output} | {name for node in graph.node for name in _reads(node)}


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read."""
    yield from (name for name in node.input if name)
    for body in subgraphs(node):
        yield from _names_read(body)


def duplicate_names(subject: Subject) -> Iterator[Finding]:
    """Find nodes with the same name, and tensors with two producers."""
    names = Counter(node.name for graph in subject.graphs() for node in graph.node if node.name)
    for name, count in names.items():
        if count > 1:
            message = f"{count} nodes have this name; selecting it by name is ambiguous"
            yield Finding(severity="warning", check="duplicate_name", message=message, node=name)
    for graph in subject.graphs():
        yield from _tensors_produced_twice(graph)


def _tensors_produced_twice(graph: onnx.GraphProto) -> Iterator[Finding]:
    produced: set[str] = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for name in node.output:
            if name and name in produced:
                yield about("duplicate_name", "error", f"tensor {name!r} has a second producer", node)
            produced.add(name)


def missing_names(subject: Subject) -> Iterator[Finding]:
    """Count nodes without a name by type."""
    types = Counter(node.op_type for node in subject.nodes() if not node.name)
    for op_type, count in types.most_common():
        nodes = "node has" if count == 1 else "nodes have"
        message = f"{count} {op_type} {nodes} no name and cannot be selected by name; `sanitize` gives them one"
        yield Finding(severity="info", check="missing_name", message=message, op_type=op_type)


def unknown_operators(subject: Subject) -> Iterator[Finding]:
    """Find operators that are unknown or deprecated at this opset, and those that need a library."""
    functions = {(function.domain, function.name) for function in subject.proto.functions}
    for node in subject.nodes():
        if (node.domain, node.op_type) in functions or node.domain in _ORT_DOMAINS:
            continue
        if node.domain in ("", "ai.onnx"):
            yield from _standard_operator(node, subject.opset)
        else:
            message = f"operator of domain {node.domain!r} needs a custom operator library or a plugin"
            yield about("unknown_op", "warning", message, node)


def _standard_operator(node: onnx.NodeProto, opset: int) -> Iterator[Finding]:
    if not onnx.defs.has(node.op_type, opset):
        yield about("unknown_op", "error", f"ONNX has no operator {node.op_type} at opset {opset}", node)
    elif onnx.defs.get_schema(node.op_type, opset).deprecated:
        yield about("unknown_op", "error", f"{node.op_type} is deprecated at opset {opset}; convert the model", node)


def versions(subject: Subject) -> Iterator[Finding]:
    """Check versions that ONNX Runtime does not load, or does not guarantee to run."""
    proto = subject.proto
    if proto.ir_version > MAX_IR_VERSION:
        message = f"IR version {proto.ir_version} is newer than the newest that ONNX Runtime loads ({MAX_IR_VERSION})"
        yield about("versions", "error", message)
    if subject.opset > MAX_OPSET:
        yield about(
            "versions", "error", f"opset {subject.opset} is newer than the newest that ONNX Runtime loads ({MAX_OPSET})"
        )
    if 0 < subject.opset < _OLDEST_OPSET:
        message = (
            f"opset {subject.opset} is older than the oldest that ONNX Runtime guarantees to run ({_OLDEST_OPSET})"
        )
        yield about("versions", "warning", message)


def dynamic_outputs(subject: Subject) -> Iterator[Finding]:
    """Find outputs whose size depends on the input's: engines then need profiles."""
    for value in subject.proto.graph.output:
        shape = value.type.tensor_type.shape if value.type.HasField("tensor_type") else None
        dims = (
            [dim.dim_param or "?" if not dim.HasField("dim_value") else str(dim.dim_value) for dim in shape.dim]
            if shape
            else []
        )
        if shape is None or not value.type.tensor_type.HasField("shape"):
            yield about("dynamic_output", "info", f"output {value.name!r} has no shape")
        elif any(not dim.HasField("dim_value") for dim in shape.dim):
            yield about("dynamic_output", "info", f"output {value.name!r} is dynamic: [{', '.join(dims)}]")


def double_precision(subject: Subject) -> Iterator[Finding]:
    """Find float64 in inputs, outputs, initializers and Casts: slow everywhere, unsupported by TensorRT."""
    double = onnx.TensorProto.DOUBLE
    graph = subject.proto.graph
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == double:
            yield about("float64", "warning", f"{value.name!r} is float64, which TensorRT does not support")
    for body in graphs_in(graph):
        for tensor in body.initializer:
            if tensor.data_type == double:
                yield about("float64", "warning", f"initializer {tensor.name!r} is float64")
        for node in body.node:
            if node.op_type == "Cast" and any(a.name == "to" and a.i == double for a in node.attribute):
                yield about("float64", "warning", "casts to float64", node)
