"""Subgraphs of If, Loop and Scan: creation, checks, and replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph, suggest
from ndld_flow.graph.edit.cloning import Renaming, captured_by, copy_graph, copy_value
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import FIRST_IR_WITH_HIDDEN_WEIGHTS
from ndld_flow.graph.edit.function_names import Imports
from ndld_flow.graph.edit.joining import Guest, check_fits, invite, join_dims, join_functions, names_in
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.node_pieces import deep_nodes, read_in_nodes
from ndld_flow.graph.edit.removal import drop_nodes, prune_values
from ndld_flow.graph.edit.tensor_types import types_by_signatures
from ndld_flow.models.element_types import Types, dtype_of
from ndld_flow.models.scopes import node_label, own_subgraphs
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import dtype_name


def find_subgraph(edited: EditedModel, scope: str) -> tuple[ir.Node, str]:
    """Return the node and attribute of an address; the node may lack the attribute. Raises `RequestError`."""
    known = edited.scopes()
    for graph in known.values():
        for node in graph:
            for attribute, body in own_subgraphs(node):
                if known.get(scope) is body:
                    return node, attribute
    outer, _, attribute = scope.rpartition("/")
    for address, graph in known.items():
        for node in graph:
            if f"{address}/{node_label(node)}".lstrip("/") == outer:
                return node, attribute
    nearest = suggest(scope, [address for address in known if "/" in address]) or "it has no subgraphs"
    raise RequestError(f"there is no subgraph {scope!r} in this model; {nearest}")


def is_in_function(model: ir.Model, graph: ir.Graph) -> bool:
    """Return whether a graph is the body of a local function, or a subgraph in one."""
    functions = model.functions.values()
    return any(graph is function.graph or graph in set(function.subgraphs()) for function in functions)


def read_subgraph(edited: EditedModel, node: ir.Node, text: str) -> ir.Graph:
    """Return a subgraph from ONNX text, in which undefined names are tensors of the graphs around the node.

    Raises `RequestError` for text that cannot be parsed, and for unknown names.
    """
    try:
        proto = onnx.parser.parse_graph(text)
    except onnx.parser.ParseError as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise RequestError(f"`text` cannot be parsed: {one_paragraph(reason)}") from None
    assert isinstance(node.graph, ir.Graph)
    nesting = Nesting(edited.model)
    outer = [nesting.value(name, node.graph) for name in _free_names(proto, set())]
    own = len(proto.input)
    proto.input.extend(
        onnx.ValueInfoProto(name=value.name or "") for value in outer
    )  # avoids a warning of onnx_ir for each
    try:
        graph = ir.serde.deserialize_graph(proto)
    except (ir.serde.SerdeError, ValueError) as error:
        raise RequestError(f"`text` is not a graph: {one_paragraph(error.__cause__ or error)}") from None
    read_in_nodes(graph, dict(zip(list(graph.inputs)[own:], outer, strict=True)))
    graph.inputs[:] = list(graph.inputs)[:own]
    Imports(edited.model).add(node.graph, {inner.domain: 1 for inner in deep_nodes(graph) if inner.domain})
    return graph


def subgraph_of_model(edited: EditedModel, node: ir.Node, name: str, connect: Mapping[str, str]) -> ir.Graph:
    """Return another model of the recipe as a subgraph.

    Its inputs in `connect` read tensors around the node, the others are the subgraph's inputs; a branch of an If has
    none, so there they read tensors of their names. Raises `RequestError` for unknown names, and for tensors that do
    not fit.
    """
    assert isinstance(node.graph, ir.Graph)
    guest = invite(edited, name)
    given, nesting = dict(connect), Nesting(edited.model)
    if node.op_type == "If":
        given |= {each: each for each in guest.inputs if each not in given and nesting.find(each, node.graph)}
    read = {guest.input(own): nesting.value(outer, node.graph) for own, outer in given.items()}
    for theirs, ours in read.items():
        check_fits(theirs, ours)
    _check_all_connected(node, guest, read)
    join_functions(edited.model, guest.model, name)
    join_dims(edited.model, guest.model, read, f"{name}_")
    graph = guest.model.graph
    graph.inputs[:] = [value for value in graph.inputs if value not in read and not value.is_initializer()]
    read_in_nodes(graph, read)
    edited.model.ir_version = max(edited.model.ir_version or 0, guest.model.ir_version or 0)
    return graph


def subgraph_copy(edited: EditedModel, node: ir.Node, scope: str, connect: Mapping[str, str]) -> ir.Graph:
    """Return a copy of another subgraph. `connect` maps outer tensors that it reads to those that the copy reads.

    Outer weights that are not visible at the node are copied too. Raises `RequestError` for other tensors that are not
    visible there.
    """
    assert isinstance(node.graph, ir.Graph)
    graph = edited.graph(scope)
    outer = {value.name or "": value for value in captured_by(graph)}
    for name in connect:
        if name not in outer:
            raise RequestError(f"{scope!r} reads no outer tensor {name!r}; {suggest(name, outer)}")
    nesting = Nesting(edited.model)
    read = {outer[own]: nesting.value(name, node.graph) for own, name in connect.items()}
    missing = [value for value in outer.values() if not nesting.sees(node.graph, value) and value not in read]
    for value in missing:
        if not value.is_initializer() or value.is_graph_input():
            raise RequestError(
                f"{scope!r} reads {value.name!r}, which is not visible at {node_label(node)!r}: give another tensor by "
                "`connect`"
            )
    weights = {value: copy_value(value) for value in missing}
    copy = copy_graph(graph, {**read, **weights})
    for value in weights.values():
        copy.initializers.add(value)
    return copy


def put_subgraph(edited: EditedModel, node: ir.Node, attribute: str, graph: ir.Graph) -> None:
    """Set a node's subgraph, and make its names unique in the model.

    Raises `RequestError` when the node requires other inputs or outputs, and in a function for weights on disk.
    """
    assert isinstance(node.graph, ir.Graph)
    if is_in_function(edited.model, node.graph):
        _check_weights_inside(graph)
    _check_signature(node, attribute, graph, types_by_signatures(edited.model))
    old = node.attributes.pop(attribute, None)
    if old is not None:
        _discard(old.as_graph())
    nodes, values = names_in(edited.model)
    Renaming(nodes, values).rename_graph(graph)
    graph.opset_imports.clear()
    if graph.initializers:
        edited.model.ir_version = max(edited.model.ir_version or 0, FIRST_IR_WITH_HIDDEN_WEIGHTS)
    node.attributes[attribute] = ir.AttrGraph(attribute, graph)


def _check_weights_inside(graph: ir.Graph) -> None:
    for each in (graph, *graph.subgraphs()):
        for name, value in each.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor | SparseInitializer):
                raise RequestError(
                    f"weight {name!r} of the subgraph cannot be in a function: inline the function first"
                )


def _discard(graph: ir.Graph) -> None:
    """Remove the nodes of a subgraph as readers, and tensors that only they read."""
    read = captured_by(graph)
    graph.outputs.clear()
    drop_nodes(graph)
    prune_values(read)


def _check_all_connected(node: ir.Node, guest: Guest, read: Mapping[ir.Value, ir.Value]) -> None:
    rest = [name for name, value in guest.inputs.items() if value not in read]
    if node.op_type == "If" and rest:
        raise RequestError(
            f"a branch of an If has no inputs: give by `connect` the tensors for {', '.join(map(repr, rest))} of model "
            f"{guest.name!r}"
        )


def _free_names(graph: onnx.GraphProto, known: set[str]) -> list[str]:
    """Return the names that a graph reads without defining them, each once."""
    known = known | {value.name for value in (*graph.input, *graph.initializer)}
    known |= {name for node in graph.node for name in node.output}
    found = [name for node in graph.node for name in node.input if name and name not in known]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _free_names(attribute.g, known)
    return list(dict.fromkeys(found))


_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}


@dataclass(frozen=True)
class _Signature:
    """Element types of a subgraph's inputs and outputs, None where unknown, and descriptions for messages."""

    inputs: list[ir.DataType | None]
    outputs: list[ir.DataType | None]
    inputs_text: str
    outputs_text: str


def _check_signature(node: ir.Node, attribute: str, graph: ir.Graph, types: Types) -> None:
    """Raise `RequestError` for an attribute that is no subgraph of the operator, and for one that does not fit it.

    `types` has the types of tensors that are not recorded in the model.
    """
    names = _BODIES.get(node.op_type) if node.domain == "" else None
    if names is None:
        return
    where = f"{node.op_type} {node_label(node)!r}"
    if attribute not in names:
        raise RequestError(f"{where} has no subgraph {attribute!r}; it has {' and '.join(names)}")
    wanted = _signature(node, types)
    if len(graph.inputs) != len(wanted.inputs):
        raise RequestError(
            f"{where} passes {wanted.inputs_text} to its {attribute}; this one takes {len(graph.inputs)}"
        )
    if len(graph.outputs) != len(wanted.outputs):
        raise RequestError(
            f"{where} requires {wanted.outputs_text} of its {attribute}; this one has {len(graph.outputs)}"
        )
    for values, dtypes in ((graph.inputs, wanted.inputs), (graph.outputs, wanted.outputs)):
        for value, dtype in zip(values, dtypes, strict=True):
            if dtype is not None and value.dtype is not None and value.dtype != dtype:
                raise RequestError(
                    f"{where} requires {dtype_name(dtype)} for {value.name!r} of its {attribute}, which is "
                    f"{dtype_name(value.dtype)}: insert a Cast"
                )


def _signature(node: ir.Node, types: Types) -> _Signature:
    outputs = [_dtype(value, types) for value in node.outputs]
    inputs = [None if value is None else _dtype(value, types) for value in node.inputs]
    if node.op_type == "If":
        return _Signature([], outputs, "no inputs", f"{len(outputs)} outputs")
    if node.op_type == "Loop":
        carried = len(inputs) - 2
        return _Signature(
            [ir.DataType.INT64, ir.DataType.BOOL, *inputs[2:]],
            [ir.DataType.BOOL, *outputs],
            f"{len(inputs)} inputs (iteration number, condition, {carried} carried)",
            f"{len(outputs) + 1} outputs (condition, {carried} carried, {len(outputs) - carried} collected)",
        )
    # Scan and SequenceMap slice their inputs and stack their outputs, which keeps the element types.
    return _Signature(inputs, outputs, f"{len(inputs)} inputs", f"{len(outputs)} outputs")


def _dtype(value: ir.Value, types: Types) -> ir.DataType | None:
    if value.dtype is None and types.get(value, "").startswith("tensor("):
        return dtype_of(types[value])
    return value.dtype
