"""Defects that a checker rejects and runtimes load, and the examination of a model with them set aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.files import check_model, load_model
from ndld_flow.models.shape_inference import infer_shapes, light_proto

_ASIDE = "ndld_flow.aside"
"""Domain of nodes that the checker rejects, so that it checks all others."""
_PLUGIN_ATTRIBUTES = frozenset(("plugin_version", "plugin_namespace"))


@dataclass(frozen=True)
class Defect:
    """A defect at one place of a model."""

    kind: str
    """Defects of one kind in a model and its source are the same defect."""
    message: str
    """The tensor or node, its defect and the remedy."""
    tensor: str = ""
    """The input or output that lacks a shape."""
    operator: str = ""
    """The operator of the default domain that onnx does not know."""
    is_plugin: bool = False
    """True if the operator is written as TensorRT's plugins are."""


@dataclass(frozen=True)
class Examination:
    """The result of ONNX's checker and strict shape inference on a model."""

    defects: tuple[Defect, ...] = ()
    """Defects that runtimes load; the checker passed the rest of the model, or reported `rejected`."""
    rejected: str = ""
    """Message of the checker on the rest of the model; empty if it passed."""
    contradiction: str = ""
    """Message of strict shape inference; empty if it passed. Some of its rules are wrong."""

    @property
    def is_clean(self) -> bool:
        return not (self.defects or self.rejected or self.contradiction)


def examine_model(path: Path) -> Examination:
    """Check a model file. Raises `ModelError` if it cannot be read."""
    try:
        check_model(path, full_check=True)
    except ModelError:
        return _examine_closely(path)
    return Examination()


def _examine_closely(path: Path) -> Examination:
    model = load_model(path)
    defects: tuple[Defect, ...] = ()
    rejected = ""
    try:
        check_model(path)
    except ModelError as error:
        proto = light_proto(model)
        inputs_from_weights(proto)
        defects = tuple(set_defects_aside(proto))
        rejected = _checked(proto) if defects else str(error).removeprefix(f"{path}: ")
    return Examination(defects, rejected, _contradiction(model))


def _checked(proto: onnx.ModelProto) -> str:
    """Return the checker's message on a model without its weights, empty if it passes."""
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        return f"the ONNX checker rejects it: {one_paragraph(error)}"
    return ""


def _contradiction(model: ir.Model) -> str:
    if _has_foreign_functions(model):
        return ""  # inference accepts operators that it does not know, except inside functions
    try:
        infer_shapes(model, strict=True)
    except ModelError as error:
        return str(error)
    return ""


def _has_foreign_functions(model: ir.Model) -> bool:
    """Return whether local functions use operators that onnx does not know, such as those of ONNX Runtime."""
    nodes = (node for function in model.functions.values() for node in function.all_nodes())
    return any(
        not onnx.defs.has(node.op_type, node.domain) and node.op_identifier() not in model.functions for node in nodes
    )


def inputs_from_weights(proto: onnx.ModelProto) -> None:
    """Make inputs of the initializers that `light_proto` left without data, so that nothing reads them."""
    declared = {value.name for value in proto.graph.input}
    for graph in graphs_of(proto.graph):
        emptied = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        for tensor in emptied:
            graph.initializer.remove(tensor)
            if tensor.name not in declared:
                declared.add(tensor.name)
                info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                proto.graph.input.append(info)


def set_defects_aside(proto: onnx.ModelProto) -> Iterator[Defect]:
    """Yield a model's defects, and change it so that the checker passes over them.

    The model has no use afterwards: nodes are in another domain, and tensors without a shape are scalars.
    """
    yield from _without_shapes(proto.graph)
    for graph in graphs_of(proto.graph):
        graph.name = graph.name or "graph"
    yield from _rejected_nodes(proto)


def _without_shapes(graph: onnx.GraphProto) -> Iterator[Defect]:
    for what, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if lacks_shape(value):
                value.type.tensor_type.shape.SetInParent()
                yield Defect(f"{what} {value.name} without a shape", shape_defect(what, value.name), tensor=value.name)
    for inner in graphs_of(graph):
        kept = [value for value in inner.value_info if not lacks_shape(value)]
        del inner.value_info[:]
        inner.value_info.extend(kept)
        if inner is not graph:
            for value in (*inner.input, *inner.output):
                if lacks_shape(value):
                    value.type.tensor_type.shape.SetInParent()


def shape_defect(what: str, name: str) -> str:
    """Return the message on an input or output of a model that has no shape."""
    operation = "set_input_shapes" if what == "input" else "set_output_types"
    return f"{what} {name!r} has no shape: ONNX requires one. Give it one with `edit`'s `{operation}`"


def lacks_shape(value: onnx.ValueInfoProto) -> bool:
    """Return whether a tensor is declared without a shape, which leaves its rank unknown."""
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _rejected_nodes(proto: onnx.ModelProto) -> Iterator[Defect]:
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    local = {(function.domain, function.name) for function in proto.functions}
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = opsets
    for graph in graphs_of(proto.graph):
        for node in graph.node:
            if (node.domain, node.op_type) in local:
                continue
            defect = _defect_of(node, context, opsets.get(node.domain, 0))
            if defect is not None:
                node.domain = _ASIDE
                yield defect
    if _ASIDE not in opsets:
        proto.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))


def _defect_of(node: onnx.NodeProto, context: onnx.checker.C.CheckerContext, opset: int) -> Defect | None:
    if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, opset):
        names = {attribute.name for attribute in node.attribute}
        return Defect(
            f"operator {node.op_type}",
            unknown_operator(node, opset),
            operator=node.op_type,
            is_plugin=is_plugin(node.op_type, names),
        )
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for attribute in alone.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
            graph.Clear()
            graph.name = "graph"
    try:
        onnx.checker.check_node(alone, context)
    except onnx.checker.ValidationError as error:
        return Defect(f"{node.op_type} node", f"node {node.name!r} ({node.op_type}): {one_paragraph(error)}")
    return None


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def unknown_operator(node: onnx.NodeProto, opset: int) -> str:
    """Return the message on a node of the default domain that onnx does not know."""
    return (
        f"node {node.name!r}: ONNX has no operator {node.op_type} at opset {opset}; only a runtime that registers it, "
        "or has a plugin for it, loads the model"
    )


def is_plugin(op_type: str, attributes: Collection[str]) -> bool:
    """Return whether a node of the default domain is written as TensorRT's plugins are."""
    return op_type.endswith("_TRT") or "Plugin" in op_type or not _PLUGIN_ATTRIBUTES.isdisjoint(attributes)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            inner: Iterable[onnx.GraphProto] = [attribute.g] if attribute.HasField("g") else attribute.graphs
            for each in inner:
                yield from graphs_of(each)
