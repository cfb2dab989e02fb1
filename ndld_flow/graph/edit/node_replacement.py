"""Replacement of a group of nodes by one node, such as a plugin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.constant_tensors import add_initializer, make_tensor
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import ConstantNodes, common_graph
from ndld_flow.graph.edit.interface import infer_edges
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    Pieces,
    captured_values,
    check_one_piece,
    deep_nodes,
    outermost,
    outputs_of,
    replace_uses,
)
from ndld_flow.graph.edit.nodes import Given, NewNode, NodeMaker, declare_outputs
from ndld_flow.graph.edit.settings import TensorValue
from ndld_flow.graph.edit.wiring import prune_values, remove_node
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import node_label


@dataclass(frozen=True)
class Replacement:
    """The node that replaces others."""

    op_type: str
    domain: str
    attributes: Mapping[str, Given]
    inputs: Sequence[str] | None
    """None: the tensors that the nodes read, without constants."""
    outputs: Sequence[str] | None
    """None: the tensors that others read."""
    weights: Mapping[str, TensorValue]
    """Name -> the tensor of a new initializer."""
    types: Mapping[str, str]
    name: str | None


def replace_nodes(edited: EditedModel, nodes: Sequence[ir.Node], new: Replacement) -> ir.Node:
    """Replace nodes of one graph by a new one, and remove what nothing needs any longer.

    Raises `RequestError` for nodes of several graphs, for nodes between which another one is needed, for an output that
    is read and is left out, and for inputs, outputs and names that do not fit.
    """
    chosen = outermost(nodes)
    graph, around = common_graph(edited, chosen), Neighbourhood(edited.model)
    check_one_piece(Pieces(around, edited.model), chosen)
    read, members = captured_values(chosen), set(deep_nodes(chosen))
    kept = _kept_outputs(chosen, new, around)
    infer_edges([value for value in kept if value is not None and value.name not in new.types], edited.model)
    inputs = _inputs(edited, new, chosen)
    scope = next(address for address, known in edited.scopes().items() if known is graph)
    for name, weight in new.weights.items():
        add_initializer(edited, make_tensor(weight, name), name, scope)
    names = tuple(edited.fresh_name(f"{new.op_type}_output") for _ in kept)
    node = NodeMaker(edited).add(NewNode(new.op_type, new.domain, new.attributes, inputs, names), graph)
    for old, output in zip(kept, node.outputs, strict=False):
        if old is not None:
            replace_uses(old, output, members, all_graphs(edited.model))
    _replace_outputs(edited, graph, members, node, kept)
    for gone in reversed(chosen):
        remove_node(gone)
    prune_values(read)
    _name_new_outputs(edited, node, new, kept)
    if new.name is not None:
        if any(other.name == new.name for graph in edited.graphs() for other in graph if other is not node):
            raise RequestError(f"there is already a node {new.name!r}; choose another name")
        node.name = new.name
    declare_outputs(node.outputs, new.types)
    return node


def _kept_outputs(chosen: Sequence[ir.Node], new: Replacement, around: Neighbourhood) -> list[ir.Value | None]:
    """Return the tensor that each output replaces; None for a new one."""
    read = outputs_of(chosen, around)
    if new.outputs is None:
        if not read:
            raise RequestError("nothing reads the outputs of the selected nodes: give `outputs`, with their `types`")
        return list(read)
    own = {value.name or "": value for node in chosen for value in node.outputs if value.name}
    kept = [own.get(name) for name in new.outputs]
    for name, value in zip(new.outputs, kept, strict=True):
        if value is None and name not in new.types:
            raise RequestError(
                f"{name!r} is no output of the selected nodes ({suggest(name, own)}); a new one needs its type: "
                f'`types: {{{name}: "float32[1, 100, 6]"}}`'
            )
    for value in read:
        readers = [reader for reader in around.readers(value) if reader not in set(deep_nodes(chosen))]
        if value not in kept and readers:
            raise RequestError(
                f"node {node_label(readers[0])!r} reads {value.name!r}, an output of the selected nodes: add it to "
                "`outputs`, or select that node too"
            )
    return kept


def _inputs(edited: EditedModel, new: Replacement, chosen: Sequence[ir.Node]) -> tuple[str, ...]:
    """Return the names of the inputs, the weights included."""
    read, own = captured_values(chosen), {value.name for node in chosen for value in node.outputs if value.name}
    if new.inputs is None:
        constants = ConstantNodes(edited.model)
        varying = (value for value in read if not value.is_initializer() and not constants.produces(value))
        inputs = tuple(value.name or "" for value in varying)
    else:
        inputs = tuple(new.inputs)
    for name in inputs:
        if name in own:
            raise RequestError(f"`inputs`: {name!r} is an output of the selected nodes, which are removed")
    return (*inputs, *(name for name in new.weights if name not in inputs))


def _name_new_outputs(edited: EditedModel, node: ir.Node, new: Replacement, kept: Sequence[ir.Value | None]) -> None:
    taken = edited.names()
    for name, value, output in zip(new.outputs or (), kept, node.outputs, strict=False):
        if value is None:
            if name in taken:
                raise RequestError(
                    f"there is already a tensor {name!r}, and a tensor has one source; choose another name"
                )
            output.name = name


def _replace_outputs(
    edited: EditedModel,
    graph: ir.Graph,
    members: Collection[ir.Node],
    node: ir.Node,
    kept: Sequence[ir.Value | None],
) -> None:
    """Put new tensors in the place of the graph's outputs that only the removed nodes produce."""
    gone = [value for value in graph.outputs if value.producer() in members]
    if not gone:
        return
    edited.note(f"outputs removed with the nodes: {', '.join(value.name or '' for value in gone)}")
    added = [output for output, old in zip(node.outputs, kept, strict=False) if old is None]
    place = list(graph.outputs).index(gone[0])
    rest = [value for value in graph.outputs if value not in gone]
    graph.outputs[:] = [*rest[:place], *added, *rest[place:]]
