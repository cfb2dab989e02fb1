"""Nodes that become a branch of an If, and branches that become nodes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.cloning import Renaming, captured_values
from ndld_flow.graph.edit.constant_nodes import ConstantNodes
from ndld_flow.graph.edit.edited_model import EditedModel, values_of
from ndld_flow.graph.edit.extracting import FIRST_IR_WITH_HIDDEN_WEIGHTS, common_graph
from ndld_flow.graph.edit.joining import make_outputs
from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.edit.nesting import Nesting
from ndld_flow.graph.edit.node_pieces import Pieces, deep_nodes, hand_over, outermost, outputs_of
from ndld_flow.graph.edit.removal import drop_nodes, prune_values
from ndld_flow.graph.edit.surgeries.rewriting import known_shapes
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import show_shape
from ndld_flow.models.scopes import node_label, own_subgraphs
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.tensor_statistics import dtype_name
from ndld_flow.models.unique_names import free_name, identifier


def wrap_in_if(
    edited: EditedModel, nodes: Sequence[ir.Node], condition: str, otherwise: Mapping[str, str], name: str
) -> ir.Node:
    """Run nodes only if a condition is true; otherwise their outputs are the tensors of `otherwise`, output -> tensor.

    Without `otherwise`, one output is the one input that is no constant. Raises `RequestError` for nodes that cannot
    become one, for unknown tensors, and when it is not clear what the outputs are otherwise.
    """
    chosen = outermost(nodes)
    around = Neighbourhood(edited.model)
    graph = common_graph(edited, chosen)
    _check_one_piece(chosen, around)
    test = Nesting(edited.model).value(condition, graph)
    outputs = outputs_of(chosen, around)
    if not outputs:
        raise RequestError("the outputs of the selected nodes are unused: there is nothing to choose")
    passed = _otherwise(edited, graph, chosen, outputs, otherwise)
    with known_shapes(edited.model):
        _check_condition(test, chosen, around)
        for inner, outer in zip(outputs, passed, strict=True):
            _check_passed(inner, outer, chosen, around)
    members = set(chosen)
    ordered = [node for node in graph if node in members]
    return _put_if(edited, graph, ordered, test, dict(zip(outputs, passed, strict=True)), name)


def inline_branches(edited: EditedModel, nodes: Sequence[ir.Node], branch: str) -> None:
    """Replace an If by the nodes of a branch; the other branch and tensors that only the If read are removed.

    Raises `RequestError` for another operator, and in a function for a branch with weights on disk.
    """
    for node in nodes:
        if node.op_type != "If" or node.domain:
            raise RequestError(f"{node_label(node)!r} is of type {node.op_type}; only an If has branches")
    inlining = _Inlining(edited)
    for node in nodes:
        inlining.inline(node, branch)


class _Inlining:
    """Replaces Ifs by branches; the model is searched once for all of them."""

    def __init__(self, edited: EditedModel) -> None:
        self._model = edited.model
        graphs = list(all_graphs(edited.model))
        self._in_functions = {
            graph for function in edited.model.functions.values() for graph in (function.graph, *function.subgraphs())
        }
        self._taken = edited.names()
        self._nodes = Counter(node.name for graph in graphs for node in graph if node.name)
        self._values = Counter(value.name for graph in graphs for value in values_of(graph) if value.name)

    def inline(self, node: ir.Node, branch: str) -> None:
        graph, body = node.graph, node.attributes[branch].as_graph()
        assert isinstance(graph, ir.Graph)
        self._rename_apart(node, body)
        make_outputs(body, self._taken)
        outputs, condition = list(body.outputs), [value for value in node.inputs if value is not None]
        body.outputs.clear()
        self._move_initializers(body, graph)
        nodes = list(body)
        body.remove(nodes)
        graph.insert_before(node, nodes)
        for old, new in zip(node.outputs, outputs, strict=True):
            hand_over(old, new, (), [graph])
        read = captured_values([node])
        drop_nodes([node])
        prune_values([*condition, *read])

    def _rename_apart(self, node: ir.Node, body: ir.Graph) -> None:
        """Rename nodes and tensors of a branch, which may repeat names of the other branch."""
        for _, gone in own_subgraphs(node):
            self._count(gone, -1)
        renaming = Renaming(self._nodes, self._values)
        renaming.rename_graph(body)
        self._taken |= renaming.made
        self._count(body, 1)

    def _count(self, body: ir.Graph, by: int) -> None:
        for graph in (body, *body.subgraphs()):
            _add(self._nodes, [node.name or "" for node in graph], by)
            _add(self._values, [value.name or "" for value in values_of(graph)], by)

    def _move_initializers(self, body: ir.Graph, graph: ir.Graph) -> None:
        """Move weights of a branch to the enclosing graph, in a function as Constant nodes."""
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            if graph in self._in_functions:
                self._make_constant(value, graph)
            else:
                graph.initializers.add(value)
                self._model.ir_version = max(self._model.ir_version or 0, FIRST_IR_WITH_HIDDEN_WEIGHTS)

    def _make_constant(self, value: ir.Value, graph: ir.Graph) -> None:
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor | SparseInitializer):
            raise RequestError(
                f"weight {value.name!r} of the branch cannot be in a function: inline the function first"
            )
        name = free_name(identifier(f"{value.name}_constant"), self._taken)
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=name)
        made = constant.outputs[0]
        made.name, made.type, made.shape = name, value.type, value.shape
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, made)
        graph.insert_before(graph[0], constant)


def _add(counts: Counter[str], names: Iterable[str], by: int) -> None:
    for name in names:
        counts[name] += by
        if not counts[name]:
            del counts[name]


def _check_one_piece(nodes: Sequence[ir.Node], around: Neighbourhood) -> None:
    obstacle = Pieces(around).obstacle(nodes)
    if obstacle is not None:
        raise RequestError(
            f"these nodes cannot be replaced by one: {node_label(obstacle)!r} depends on one of them and another "
            "depends on it. Select that node too, or fewer nodes"
        )


def _check_condition(test: ir.Value, nodes: Sequence[ir.Node], around: Neighbourhood) -> None:
    if test.dtype not in (None, ir.DataType.BOOL):
        raise RequestError(f"the condition {test.name!r} is not a bool: insert a Cast or a comparison before it")
    dims = None if test.shape is None else test.shape.dims
    if dims and any(isinstance(dim, int) and dim != 1 for dim in dims):
        raise RequestError(f"the condition {test.name!r} is {show_shape(test.shape)}, but an If requires one bool")
    if not around.before(test).isdisjoint(nodes):
        raise RequestError(
            f"the condition {test.name!r} depends on the selected nodes, which run only if it is true: select fewer "
            "nodes, or give a condition that does not depend on them"
        )


def _check_passed(inner: ir.Value, outer: ir.Value, nodes: Sequence[ir.Node], around: Neighbourhood) -> None:
    if not around.before(outer).isdisjoint(nodes):
        raise RequestError(
            f"`otherwise`: {outer.name!r} depends on the selected nodes, which do not run when the condition is "
            "false: give a tensor that does not depend on them"
        )
    if inner.type is None or outer.type is None or inner.type == outer.type:
        return
    what = f"`otherwise`: {inner.name!r} is {_kind(inner.type)}, but {outer.name!r} is {_kind(outer.type)}"
    if type(inner.type) is not type(outer.type):
        raise RequestError(f"{what}, and an If has one type for both: give a tensor of that type")
    raise RequestError(f"{what}, and an If has one type for both. Insert a Cast after {outer.name!r}")


def _kind(type_: ir.TypeProtocol) -> str:
    word = dtype_name(type_.dtype)
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        return f"{'a sequence' if isinstance(type_, ir.SequenceType) else 'an optional'} of {word}"
    return word


def _otherwise(
    edited: EditedModel,
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    given: Mapping[str, str],
) -> list[ir.Value]:
    """Return for each output the tensor that replaces it when the condition is false."""
    names = [value.name or "" for value in outputs]
    for name in given:
        if name not in names:
            raise RequestError(f"`otherwise`: the nodes have no output {name!r}; {suggest(name, names)}")
    constants = ConstantNodes(edited.model)
    fed = [v for v in captured_values(nodes) if not v.is_initializer() and not constants.makes(v)]
    if not given and len(fed) == len(outputs) == 1:
        return fed
    missing = [name for name in names if name not in given]
    if missing:
        raise RequestError(
            f"give the value of {', '.join(map(repr, missing))} when the condition is false: "
            f"`otherwise: {{{missing[0]}: TENSOR}}`"
        )
    nesting = Nesting(edited.model)
    return [nesting.value(given[name], graph) for name in names]


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
