"""Nodes that become a branch of an If, and branches that become nodes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ndld_flow.backends.editing.bodies import is_in_function, visible_value
from ndld_flow.backends.editing.cloning import captured_values
from ndld_flow.backends.editing.constant_nodes import ConstantNodes
from ndld_flow.backends.editing.discarding import drop_nodes
from ndld_flow.backends.editing.edited_model import EditedModel
from ndld_flow.backends.editing.extracting import FIRST_IR_WITH_HIDDEN_WEIGHTS, common_graph
from ndld_flow.backends.editing.joining import make_outputs
from ndld_flow.backends.editing.neighbourhood import Neighbourhood
from ndld_flow.backends.editing.node_pieces import Pieces, deep_nodes, hand_over, outermost, outputs_of
from ndld_flow.backends.editing.pruning import prune_values
from ndld_flow.backends.models.files import all_graphs
from ndld_flow.backends.models.scopes import node_label
from ndld_flow.backends.models.sparse_tensors import SparseInitializer
from ndld_flow.backends.models.unique_names import free_name, identifier
from ndld_flow.errors import RequestError
from ndld_flow.nearest import say_nearest


def wrap_in_if(
    edited: EditedModel, nodes: Sequence[ir.Node], condition: str, otherwise: Mapping[str, str], name: str
) -> ir.Node:
    """Let nodes run only when a condition holds; else their outputs are the tensors of `otherwise`, output -> tensor.

    Without `otherwise`, one output is the one input that is no constant. Raises `RequestError` for nodes that cannot
    become one, for unknown tensors, and when it is not clear what the outputs are otherwise.
    """
    chosen = outermost(nodes)
    around = Neighbourhood(edited.model)
    graph = common_graph(edited, chosen)
    _check_one_piece(chosen, around)
    test = visible_value(edited.model, graph, condition)
    if test.dtype not in (None, ir.DataType.BOOL):
        raise RequestError(f"the condition {condition!r} is no bool: put a Cast or a comparison before it")
    outputs = outputs_of(chosen, around)
    if not outputs:
        raise RequestError("nobody reads what the selected nodes make: there is nothing to choose")
    passed = _otherwise(edited, graph, chosen, outputs, otherwise)
    ordered = [node for node in graph if node in chosen]
    return _put_if(edited, graph, ordered, test, dict(zip(outputs, passed, strict=True)), name)


def inline_branches(edited: EditedModel, nodes: Sequence[ir.Node], branch: str) -> None:
    """Put the nodes of a branch in the place of its If; the other branch, and what only the If read, goes.

    Raises `RequestError` for another operator, and in a function for a branch with weights on disk.
    """
    for node in nodes:
        if node.op_type != "If" or node.domain:
            raise RequestError(f"{node_label(node)!r} is of type {node.op_type}; only an If has branches")
        _inline_branch(edited, node, branch)


def _inline_branch(edited: EditedModel, node: ir.Node, branch: str) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    body = node.attributes[branch].as_graph()
    make_outputs(body, edited.names())
    outputs, condition = list(body.outputs), [value for value in node.inputs if value is not None]
    body.outputs.clear()
    _move_initializers(edited, body, graph)
    nodes = list(body)
    body.remove(nodes)
    graph.insert_before(node, nodes)
    graphs = list(all_graphs(edited.model))
    for old, new in zip(node.outputs, outputs, strict=True):
        hand_over(old, new, (), graphs)
    read = captured_values([node])
    drop_nodes([node])
    prune_values([*condition, *read])


def _check_one_piece(nodes: Sequence[ir.Node], around: Neighbourhood) -> None:
    obstacle = Pieces(around).obstacle(nodes)
    if obstacle is not None:
        raise RequestError(
            f"these nodes cannot become one: {node_label(obstacle)!r} depends on one of them, and another of them "
            "depends on it. Select it too, or fewer nodes"
        )


def _otherwise(
    edited: EditedModel,
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    given: Mapping[str, str],
) -> list[ir.Value]:
    """For each output the tensor that it is when the condition does not hold."""
    names = [value.name or "" for value in outputs]
    for name in given:
        if name not in names:
            raise RequestError(f"`otherwise`: the nodes give no {name!r}; {say_nearest(name, names)}")
    constants = ConstantNodes(edited.model)
    fed = [v for v in captured_values(nodes) if not v.is_initializer() and not constants.makes(v)]
    if not given and len(fed) == len(outputs) == 1:
        return fed
    missing = [name for name in names if name not in given]
    if missing:
        raise RequestError(
            f"say what {', '.join(map(repr, missing))} is when the condition does not hold: "
            f"`otherwise: {{{missing[0]}: TENSOR}}`"
        )
    return [visible_value(edited.model, graph, given[name]) for name in names]


def _put_if(
    edited: EditedModel,
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    condition: ir.Value,
    passed: Mapping[ir.Value, ir.Value],
    name: str,
) -> ir.Node:
    taken = edited.names()
    node = ir.Node("", "If", [condition], outputs=[ir.Value() for _ in passed], name=free_name(identifier(name), taken))
    otherwise = [_identity(value, outer, taken) for value, outer in passed.items()]
    graphs, mine = list(all_graphs(edited.model)), set(deep_nodes(nodes))
    graph.insert_before(nodes[-1], node)
    for inner, outer in zip(passed, node.outputs, strict=True):
        wish = identifier(f"{inner.name}_then")
        hand_over(inner, outer, mine, graphs)
        inner.name = free_name(wish, taken)
    graph.remove(nodes)
    branches = {
        "then_branch": ir.Graph([], list(passed), nodes=nodes, name=f"{node.name}_then"),
        "else_branch": ir.Graph([], [each.outputs[0] for each in otherwise], nodes=otherwise, name=f"{node.name}_else"),
    }
    for attribute, body in branches.items():
        node.attributes[attribute] = ir.AttrGraph(attribute, body)
    return node


def _identity(value: ir.Value, passed: ir.Value, taken: set[str]) -> ir.Node:
    name = free_name(identifier(f"{value.name}_else"), taken)
    made = ir.Value(name=name, type=passed.type, shape=passed.shape)
    return ir.Node("", "Identity", [passed], outputs=[made], name=free_name(f"{name}_Identity", taken))


def _move_initializers(edited: EditedModel, body: ir.Graph, graph: ir.Graph) -> None:
    """Weights of a branch go to the graph around it; functions have none, there they become Constant nodes."""
    in_function = is_in_function(edited.model, graph)
    taken = edited.names()
    for value in list(body.initializers.values()):
        tensor = value.const_value
        del body.initializers[value.name or ""]
        if not in_function:
            if value.name in graph.initializers:
                value.name = free_name(value.name or "weight", taken)
            graph.initializers.add(value)
            edited.model.ir_version = max(edited.model.ir_version or 0, FIRST_IR_WITH_HIDDEN_WEIGHTS)
            continue
        if tensor is None or isinstance(tensor, ir.ExternalTensor | SparseInitializer):
            raise RequestError(
                f"weight {value.name!r} of the branch cannot stand in a function: inline the function first"
            )
        name = free_name(identifier(f"{value.name}_constant"), taken)
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=name)
        constant.outputs[0].name, constant.outputs[0].type, constant.outputs[0].shape = name, value.type, value.shape
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, constant.outputs[0])
        graph.insert_before(graph[0], constant)
