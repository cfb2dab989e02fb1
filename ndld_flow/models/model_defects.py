"""Defects that a checker rejects and runtimes load, and the examination of a model with them set aside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.element_types import bodies_of, graphs_of
from ndld_flow.models.files import DEFAULT_DOMAIN, check_model, lacks_shape, load_model, repairs_of
from ndld_flow.models.op_reference import operators
from ndld_flow.models.shape_inference import infer_shapes, light_proto

_ASIDE = "ndld_flow.aside"
"""Domain of nodes that the checker rejects, so that it checks all others."""
_PLUGIN_ATTRIBUTES = frozenset(("plugin_version", "plugin_namespace"))


@dataclass(frozen=True)
class Defect:
    """A defect of a tensor or a node."""

    message: str
    """The defect and, for a tensor, its remedy."""
    tensor: str = ""
    """An input, output or other tensor that is declared without a shape."""
    node: str = ""
    """Name of the node, or its first output."""
    op_type: str = ""
    is_unknown: bool = False
    """True if onnx does not have the operator."""
    is_plugin: bool = False
    """True if the operator is written as TensorRT's plugins are."""

    @property
    def kind(self) -> str:
        """Return a text that is equal for the same defect of a model and of its source."""
        if self.tensor:
            return f"shape of {self.tensor}"
        return f"unknown {self.op_type}" if self.is_unknown else f"rejected {self.op_type}"

    def __str__(self) -> str:
        return self.message if self.tensor else f"node {self.node!r} ({self.op_type}): {self.message}"


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
        rejected = _checked(proto)
        if not (rejected or defects or repairs_of(model)):
            rejected = str(error).removeprefix(f"{path}: ")  # in weights, which the proto lacks
    return Examination(defects, rejected, _contradiction(model))


def _checked(proto: onnx.ModelProto) -> str:
    """Return the checker's message on a model without its weights, empty if it passes."""
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        return f"the ONNX checker rejects it: {one_paragraph(error)}"
    return ""


def _contradiction(model: ir.Model) -> str:
    inside = (node for function in model.functions.values() for node in function.all_nodes())
    if any(
        not onnx.defs.has(node.op_type, node.domain) and node.op_identifier() not in model.functions for node in inside
    ):
        return ""  # inference accepts operators that it does not know, except inside functions
    try:
        infer_shapes(model, strict=True)
    except ModelError as error:
        return str(error)
    return ""


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
    for value, message in tensors_without_shape(proto.graph):
        value.type.tensor_type.shape.SetInParent()
        yield Defect(message, tensor=value.name)
    for graph in graphs_of(proto.graph):
        del graph.value_info[:]
    yield from _rejected_nodes(proto)


def tensors_without_shape(graph: onnx.GraphProto) -> Iterator[tuple[onnx.ValueInfoProto, str]]:
    """Yield inputs, outputs and other tensors that are declared without a shape, with a message on each.

    The checker rejects them, except for inputs and outputs of subgraphs; runtimes take their rank as unknown.
    """
    inner = [value for each in graphs_of(graph) for value in each.value_info]
    inferred = "`sanitize` gives it one if it can be inferred"
    for what, values, remedy in (
        ("input", graph.input, "`set_shapes` of `edit` gives it one"),
        ("output", graph.output, inferred),
        ("tensor", inner, inferred),
    ):
        for value in values:
            if lacks_shape(value):
                yield value, f"{what} {value.name!r} is declared without a shape; {remedy}"


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
    name = node.name or next(iter(node.output), "")
    if node.domain in ("", DEFAULT_DOMAIN) and not onnx.defs.has(node.op_type, opset):
        message = unknown_operator(node, opset)
        return Defect(message, node=name, op_type=node.op_type, is_unknown=True, is_plugin=is_plugin(node))
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for graph in bodies_of(alone):
        graph.Clear()
        graph.name = "graph"
    try:
        onnx.checker.check_node(alone, context)
    except onnx.checker.ValidationError as error:
        return Defect(one_paragraph(error), node=name, op_type=node.op_type)
    return None


def unknown_operator(node: onnx.NodeProto, opset: int) -> str:
    """Return the message on a node of the default domain that onnx does not know at this opset."""
    if onnx.defs.has(node.op_type):
        return f"ONNX has no operator {node.op_type} at opset {opset}; only some runtimes load the model"
    if is_plugin(node):
        return f"{node.op_type} is a plugin of TensorRT; runtimes without it do not load the model"
    if ("", node.op_type) in operators():
        return f"{node.op_type} is an operator of ONNX Runtime, not of ONNX; other runtimes may not load the model"
    return f"ONNX has no operator {node.op_type} at opset {opset}; only runtimes with a plugin for it load the model"


def is_deprecated(op_type: str, opset: int) -> bool:
    """Return whether an operator of the default domain is deprecated at an opset."""
    return onnx.defs.has(op_type, opset) and onnx.defs.get_schema(op_type, opset).deprecated


def is_plugin(node: onnx.NodeProto) -> bool:
    """Return whether a node of the default domain is written as TensorRT's plugins are."""
    return looks_like_plugin(node.op_type, (attribute.name for attribute in node.attribute))


def looks_like_plugin(op_type: str, attributes: Iterable[str]) -> bool:
    """Return whether an operator of the default domain is named as TensorRT's plugins are, or has their attributes."""
    is_named = op_type.endswith("_TRT") or op_type.startswith("TRT_") or "Plugin" in op_type
    return is_named or not _PLUGIN_ATTRIBUTES.isdisjoint(attributes)
