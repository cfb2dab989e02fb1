"""Subgraphs of If, Loop and Scan: set from text, from a model or by copying; nodes wrapped in an If and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError, UnknownNameError, check_known
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS, EditedModel
from ndld_flow.graph.edit.extracting import ConstantNodes, common_graph
from ndld_flow.graph.edit.graph_edits import drop_nodes, known_shapes, prune_values
from ndld_flow.graph.edit.interface import types_by_signatures
from ndld_flow.graph.edit.joining import check_fits, join_dims, join_functions, load_added_model, make_outputs
from ndld_flow.graph.edit.names import Nesting, names_of
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    Pieces,
    Renaming,
    check_one_piece,
    copy_graph,
    copy_value,
    deep_nodes,
    outermost,
    outputs_of,
    read_in_nodes,
    replace_uses,
)
from ndld_flow.graph.edit.schemas import Imports
from ndld_flow.models.element_types import Types, bodies_of, dtype_name, dtype_of, functions_by_graph
from ndld_flow.models.files import all_graphs
from ndld_flow.models.input_shapes import show_shape
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import (
    captured_by,
    captured_values,
    free_name,
    identifier,
    node_label,
    own_subgraphs,
    put_constant,
    values_of,
)

_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}


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
    subgraphs = [address for address in known if "/" in address]
    raise UnknownNameError(f"this model has no subgraph {scope!r}", scope, subgraphs)


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
    added = load_added_model(edited, name)
    given, nesting = dict(connect), Nesting(edited.model)
    if node.op_type == "If":
        given |= {each: each for each in added.inputs if each not in given and nesting.find(each, node.graph)}
    read = {added.input(own): nesting.value(outer, node.graph) for own, outer in given.items()}
    for theirs, ours in read.items():
        check_fits(theirs, ours)
    rest = [name for name, value in added.inputs.items() if value not in read]
    if node.op_type == "If" and rest:
        raise RequestError(
            f"a branch of an If has no inputs: give with `connect` the tensors for {', '.join(map(repr, rest))} of "
            f"model {added.name!r}"
        )
    join_functions(edited.model, added.model, name)
    join_dims(edited.model, added.model, read, f"{name}_")
    graph = added.model.graph
    graph.inputs[:] = [value for value in graph.inputs if value not in read and not value.is_initializer()]
    read_in_nodes(graph, read)
    edited.model.ir_version = max(edited.model.ir_version or 0, added.model.ir_version or 0)
    return graph


def subgraph_copy(edited: EditedModel, node: ir.Node, scope: str, connect: Mapping[str, str]) -> ir.Graph:
    """Return a copy of another subgraph. `connect` maps outer tensors that it reads to those that the copy reads.

    Outer weights that are not visible at the node are copied too. Raises `RequestError` for other tensors that are not
    visible there.
    """
    assert isinstance(node.graph, ir.Graph)
    graph = edited.graph(scope)
    outer = {value.name or "": value for value in captured_by(graph)}
    check_known(connect, outer, f"{scope!r} reads no outer tensor")
    nesting = Nesting(edited.model)
    read = {outer[own]: nesting.value(name, node.graph) for own, name in connect.items()}
    missing = [value for value in outer.values() if not nesting.sees(node.graph, value) and value not in read]
    for value in missing:
        if not value.is_initializer() or value.is_graph_input():
            raise RequestError(
                f"{scope!r} reads {value.name!r}, which is not visible at {node_label(node)!r}: give another tensor "
                "with `connect`"
            )
    weights = {value: copy_value(value) for value in missing}
    copy = copy_graph(graph, {**read, **weights})
    for value in weights.values():
        copy.initializers.add(value)
    return copy


def put_subgraph(edited: EditedModel, node: ir.Node, attribute: str, graph: ir.Graph) -> None:
    """Set a node's subgraph, and make its names unique in the model.

    Raises `RequestError` if the node requires other inputs or outputs, and in a function for weights on disk.
    """
    assert isinstance(node.graph, ir.Graph)
    if node.graph in functions_by_graph(edited.model):
        for each in (graph, *graph.subgraphs()):
            for name, value in each.initializers.items():
                if isinstance(value.const_value, ir.ExternalTensor | SparseInitializer):
                    raise RequestError(
                        f"weight {name!r} of the subgraph cannot be in a function: inline the function first"
                    )
    _check_signature(node, attribute, graph, types_by_signatures(edited.model))
    old = node.attributes.pop(attribute, None)
    if old is not None:
        gone = old.as_graph()
        read = captured_by(gone)
        gone.outputs.clear()
        drop_nodes(gone)
        prune_values(read)
    Renaming(*names_of(list(all_graphs(edited.model)))).rename_graph(graph)
    graph.opset_imports.clear()
    if graph.initializers:
        edited.model.ir_version = max(edited.model.ir_version or 0, FIRST_WITH_FREE_INITIALIZERS)
    node.attributes[attribute] = ir.AttrGraph(attribute, graph)


def _free_names(graph: onnx.GraphProto, known: set[str]) -> list[str]:
    """Return the names that a graph reads without defining them, each once."""
    known = known | {value.name for value in (*graph.input, *graph.initializer)}
    known |= {name for node in graph.node for name in node.output}
    free = [name for node in graph.node for name in node.input if name and name not in known]
    for node in graph.node:
        for body in bodies_of(node):
            free += _free_names(body, known)
    return list(dict.fromkeys(free))


@dataclass(frozen=True)
class _Signature:
    """Element types of a subgraph's inputs and outputs, None if unknown, and descriptions for messages."""

    inputs: list[ir.DataType | None]
    outputs: list[ir.DataType | None]
    inputs_text: str
    outputs_text: str


def _check_signature(node: ir.Node, attribute: str, graph: ir.Graph, types: Types) -> None:
    """Raise `RequestError` for an attribute that is not a subgraph of the operator, and for one that does not fit it.

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
            f"{where} requires {wanted.outputs_text} from its {attribute}; this one has {len(graph.outputs)}"
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
        return _Signature([], outputs, "no inputs", counted(len(outputs), "output"))
    if node.op_type == "Loop":
        carried = len(inputs) - 2
        return _Signature(
            [ir.DataType.INT64, ir.DataType.BOOL, *inputs[2:]],
            [ir.DataType.BOOL, *outputs],
            f"{len(inputs)} inputs (iteration number, condition, {carried} carried)",
            f"{len(outputs) + 1} outputs (condition, {carried} carried, {len(outputs) - carried} collected)",
        )
    # Scan and SequenceMap slice their inputs and stack their outputs, which keeps the element types.
    return _Signature(inputs, outputs, counted(len(inputs), "input"), counted(len(outputs), "output"))


def _dtype(value: ir.Value, types: Types) -> ir.DataType | None:
    if value.dtype is None and types.get(value, "").startswith("tensor("):
        return dtype_of(types[value])
    return value.dtype


def wrap_in_if(
    edited: EditedModel, nodes: Sequence[ir.Node], condition: str, otherwise: Mapping[str, str], name: str
) -> ir.Node:
    """Run nodes only if a condition is true; otherwise their outputs are the tensors of `otherwise`, output -> tensor.

    Without `otherwise`, a single output is replaced by the only input that is not a constant. Raises `RequestError` for
    nodes that cannot be replaced by one, for unknown tensors, and for outputs without a replacement.
    """
    chosen = outermost(nodes)
    around = Neighbourhood(edited.model)
    graph = common_graph(edited, chosen)
    check_one_piece(Pieces(around), chosen)
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
        self._in_functions = functions_by_graph(edited.model)
        self._taken = edited.names()
        self._nodes = Counter(node.name for graph in graphs for node in graph if node.name)
        self._values = Counter(value.name for graph in graphs for value in values_of(graph) if value.name)

    def inline(self, node: ir.Node, branch: str) -> None:
        graph, body = node.graph, node.attributes[branch].as_graph()
        assert isinstance(graph, ir.Graph)
        # The branch may repeat names of the other one.
        for _, gone in own_subgraphs(node):
            self._count(gone, -1)
        renaming = Renaming(self._nodes, self._values)
        renaming.rename_graph(body)
        self._taken |= renaming.new
        self._count(body, 1)
        make_outputs(body, self._taken)
        outputs, condition = list(body.outputs), [value for value in node.inputs if value is not None]
        body.outputs.clear()
        self._move_initializers(body, graph)
        nodes = list(body)
        body.remove(nodes)
        graph.insert_before(node, nodes)
        for old, new in zip(node.outputs, outputs, strict=True):
            replace_uses(old, new, (), [graph])
        read = captured_values([node])
        drop_nodes([node])
        prune_values([*condition, *read])

    def _count(self, body: ir.Graph, by: int) -> None:
        for graph in (body, *body.subgraphs()):
            _add(self._nodes, [node.name or "" for node in graph], by)
            _add(self._values, [value.name or "" for value in values_of(graph)], by)

    def _move_initializers(self, body: ir.Graph, graph: ir.Graph) -> None:
        """Move weights of a branch to the enclosing graph, in a function as Constant nodes."""
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            if graph not in self._in_functions:
                graph.initializers.add(value)
                self._model.ir_version = max(self._model.ir_version or 0, FIRST_WITH_FREE_INITIALIZERS)
                continue
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor | SparseInitializer):
                raise RequestError(
                    f"weight {value.name!r} of the branch cannot be in a function: inline the function first"
                )
            name = free_name(identifier(f"{value.name}_constant"), self._taken)
            output = ir.Value(name=name, type=value.type, shape=value.shape)
            value.replace_all_uses_with(output)
            put_constant(graph, output, tensor)


def _add(counts: Counter[str], names: Iterable[str], by: int) -> None:
    for name in names:
        counts[name] += by
        if not counts[name]:
            del counts[name]


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
    check_known(given, names, "`otherwise`: the nodes have no output")
    constants = ConstantNodes(edited.model)
    fed = [v for v in captured_values(nodes) if not v.is_initializer() and not constants.produces(v)]
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
    otherwise = []
    for value, outer in passed.items():
        output = ir.Value(name=free_name(identifier(f"{value.name}_else"), taken), type=outer.type, shape=outer.shape)
        label = free_name(f"{output.name}_Identity", taken)
        otherwise.append(ir.Node("", "Identity", [outer], outputs=[output], name=label))
    graphs, mine = list(all_graphs(edited.model)), set(deep_nodes(nodes))
    graph.insert_before(nodes[-1], node)
    for inner, outer in zip(passed, node.outputs, strict=True):
        wish = identifier(f"{inner.name}_then")
        replace_uses(inner, outer, mine, graphs)
        inner.name = free_name(wish, taken)
    graph.remove(nodes)
    branches = {
        "then_branch": ir.Graph([], list(passed), nodes=nodes, name=f"{node.name}_then"),
        "else_branch": ir.Graph([], [each.outputs[0] for each in otherwise], nodes=otherwise, name=f"{node.name}_else"),
    }
    for attribute, body in branches.items():
        node.attributes[attribute] = ir.AttrGraph(attribute, body)
    return node
