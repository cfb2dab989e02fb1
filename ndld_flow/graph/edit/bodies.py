"""Bodies of If, Loop and Scan: where they come from, what their node wants of them, and how they are put in."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph, suggest
from ndld_flow.graph.edit.body_arity import check_body
from ndld_flow.graph.edit.cloning import Renaming, captured_by, copy_graph, copy_value
from ndld_flow.graph.edit.dims_joining import join_dims
from ndld_flow.graph.edit.discarding import drop_nodes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import FIRST_IR_WITH_HIDDEN_WEIGHTS
from ndld_flow.graph.edit.function_joining import join_functions
from ndld_flow.graph.edit.function_names import Imports
from ndld_flow.graph.edit.joining import Guest, check_fits, invite, names_in
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.node_pieces import deep_nodes, read_in_nodes
from ndld_flow.graph.edit.pruning import prune_values
from ndld_flow.graph.edit.tensor_types import types_by_signatures
from ndld_flow.models.scopes import node_label, own_subgraphs
from ndld_flow.models.sparse_tensors import SparseInitializer


def find_body(edited: EditedModel, scope: str) -> tuple[ir.Node, str]:
    """The node and the attribute of an address. The node need not have the attribute yet. Raises `RequestError`."""
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
    told = suggest(scope, [address for address in known if "/" in address]) or "it has no bodies"
    raise RequestError(f"there is no body {scope!r} in this model; {told}")


def is_in_function(model: ir.Model, graph: ir.Graph) -> bool:
    """Whether a graph is a local function's, or a body in one."""
    functions = model.functions.values()
    return any(graph is function.graph or graph in set(function.subgraphs()) for function in functions)


def make_body(
    edited: EditedModel, node: ir.Node, text: str | None, model: str | None, connect: Mapping[str, str]
) -> ir.Graph:
    """A body from text or from another model, not yet in its node. Raises `RequestError` where it cannot be made."""
    if text is not None:
        return _body_from_text(edited, node, text)
    assert model is not None
    return _body_from_model(edited, node, model, connect)


def _body_from_text(edited: EditedModel, node: ir.Node, text: str) -> ir.Graph:
    """A body written as ONNX text; names that it does not define mean tensors around the node.

    Raises `RequestError` for text that cannot be read, and for names that are nowhere.
    """
    try:
        proto = onnx.parser.parse_graph(text)
    except onnx.parser.ParseError as error:
        told = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise RequestError(f"`text` cannot be read: {one_paragraph(told)}") from None
    assert isinstance(node.graph, ir.Graph)
    nesting = Nesting(edited.model)
    outer = [nesting.value(name, node.graph) for name in _free_names(proto, set())]
    own = len(proto.input)
    proto.input.extend(onnx.ValueInfoProto(name=value.name or "") for value in outer)  # else onnx_ir warns of each
    try:
        graph = ir.serde.deserialize_graph(proto)
    except (ir.serde.SerdeError, ValueError) as error:
        raise RequestError(f"`text` is no graph: {one_paragraph(error.__cause__ or error)}") from None
    read_in_nodes(graph, dict(zip(list(graph.inputs)[own:], outer, strict=True)))
    graph.inputs[:] = list(graph.inputs)[:own]
    Imports(edited.model).add(node.graph, {inner.domain: 1 for inner in deep_nodes(graph) if inner.domain})
    return graph


def _body_from_model(edited: EditedModel, node: ir.Node, name: str, connect: Mapping[str, str]) -> ir.Graph:
    """Another model of the recipe as a body. Inputs of it in `connect` read tensors around the node, the others are the
    body's inputs; an If's body has none, so there they read tensors of their names.

    Raises `RequestError` for unknown names, and for tensors that do not fit.
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


def body_from_scope(edited: EditedModel, node: ir.Node, scope: str, connect: Mapping[str, str]) -> ir.Graph:
    """A copy of another body. `connect`: an outer tensor that it reads -> what the copy reads instead; outer weights
    that cannot be read around the node come along.

    Raises `RequestError` for other tensors that cannot be read there.
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
                f"{scope!r} reads {value.name!r}, which cannot be read at {node_label(node)!r}: say by `connect` what "
                "is to be read instead"
            )
    weights = {value: copy_value(value) for value in missing}
    made = copy_graph(graph, {**read, **weights})
    for value in weights.values():
        made.initializers.add(value)
    return made


def put_body(edited: EditedModel, node: ir.Node, attribute: str, graph: ir.Graph) -> None:
    """Let a graph be a node's body, in place of the one it has. All its names become unique in the model.

    Raises `RequestError` when the node wants other inputs or outputs of its body; in a function also for weights on
    disk.
    """
    assert isinstance(node.graph, ir.Graph)
    if is_in_function(edited.model, node.graph):
        _check_weights_inside(graph)
    check_body(node, attribute, graph, types_by_signatures(edited.model))
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
                raise RequestError(f"weight {name!r} of the body cannot stand in a function: inline the function first")


def _discard(graph: ir.Graph) -> None:
    """What stood in a body no longer counts as a reader; what only it read goes."""
    read = captured_by(graph)
    graph.outputs.clear()
    drop_nodes(graph)
    prune_values(read)


def _check_all_connected(node: ir.Node, guest: Guest, read: Mapping[ir.Value, ir.Value]) -> None:
    rest = [name for name, value in guest.inputs.items() if value not in read]
    if node.op_type == "If" and rest:
        raise RequestError(
            f"a branch of an If has no inputs: say by `connect` which tensors {', '.join(map(repr, rest))} of model "
            f"{guest.name!r} are"
        )


def _free_names(graph: onnx.GraphProto, known: set[str]) -> list[str]:
    """What a graph reads and nobody in it makes, each once."""
    known = known | {value.name for value in (*graph.input, *graph.initializer)}
    known |= {name for node in graph.node for name in node.output}
    found = [name for node in graph.node for name in node.input if name and name not in known]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _free_names(attribute.g, known)
    return list(dict.fromkeys(found))
