"""Local functions made of nodes, called in place of the nodes and of equal blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.cloning import captured_values
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_names import IR_OF_DEFAULTS, IR_OF_FUNCTIONS, FunctionName, Imports, need_ir_version
from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.edit.node_pieces import Pieces, deep_nodes, hand_over, is_read_outside, outermost, read_in_nodes
from ndld_flow.graph.edit.pattern_matching import Match
from ndld_flow.graph.edit.removal import prune_values, remove_node
from ndld_flow.graph.edit.repeats import find_repeats, itself, largest_repeat, same_tensor
from ndld_flow.models.files import all_graphs
from ndld_flow.models.node_details import constant_tensor
from ndld_flow.models.scopes import node_label
from ndld_flow.models.sparse_tensors import SparseInitializer
from ndld_flow.models.unique_names import free_name, identifier

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_READ_BYTES = 2**16
"""Maximum size for comparing tensor attributes by value; larger ones are equal only if they are the same object."""


def make_function(
    edited: EditedModel, nodes: Sequence[ir.Node], name: FunctionName, repeats: bool, inside: bool
) -> list[Match]:
    """Move nodes into a new local function and call it in their place, and with `repeats` in place of equal blocks.

    What the nodes read becomes an input, what others read of them an output; attributes that are not the same
    everywhere become attributes of the function. With `inside`, constants that are the same everywhere go in.
    Returns what was replaced, the nodes themselves first. Raises `RequestError` for nodes that cannot become one.
    """
    _sort(edited.model)
    nodes = _one_piece(edited, nodes)
    around = Neighbourhood(edited.model)
    found = find_repeats(edited.model, nodes, around) if repeats else [itself(nodes)]
    _Making(edited, name, found, around, inside).make()
    return found


def make_repeated_function(edited: EditedModel, name: FunctionName, min_nodes: int, inside: bool) -> list[Match]:
    """Do the same for the largest repeated block. Raises `RequestError` when there is none."""
    _sort(edited.model)
    around = Neighbourhood(edited.model)
    found = largest_repeat(edited.model, min_nodes, around)
    _Making(edited, name, found, around, inside).make()
    return found


def _one_piece(edited: EditedModel, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes without those in the subgraphs of others, in the graph's order."""
    chosen = outermost(nodes)
    graph = _graph_of(chosen[0])
    if any(node.graph is not graph for node in chosen):
        where = [repr(address) for address, each in edited.scopes().items() if any(n.graph is each for n in chosen)]
        raise RequestError(
            f"a function is made of nodes of one graph, and these are in {', '.join(where)}: choose one by `scope`"
        )
    obstacle = Pieces(Neighbourhood(edited.model), edited.model).obstacle(chosen)
    if obstacle is not None:
        raise RequestError(
            f"these nodes cannot be replaced by one: {node_label(obstacle)!r} depends on one of them and another "
            "depends on it. Select that node too, or fewer nodes"
        )
    members = set(chosen)
    return [node for node in graph if node in members]


def _sort(model: ir.Model) -> None:
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        graph.sort()


def _graph_of(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph


@dataclass
class _Parameter:
    """An attribute of the function: its value for each call, and the places in the body that refer to it."""

    type: ir.AttributeType
    given: list[ir.Attr]
    """Values of the blocks, in their order."""
    places: list[tuple[ir.Node, str]] = field(default_factory=list)
    name: str = ""


class _Making:
    """A function under construction. The nodes of the first block become its body."""

    def __init__(
        self, edited: EditedModel, name: FunctionName, found: Sequence[Match], around: Neighbourhood, inside: bool
    ) -> None:
        self._model = edited.model
        self._edited = edited
        self._name = name
        self._found = found
        self._nodes = list(found[0].nodes.values())
        read = captured_values(self._nodes)
        self._constants = [value for value in read if inside and self._may_go_inside(value)]
        self._inputs = [value for value in read if value not in self._constants]
        self._outputs = self._read_outside(around)
        self._parameters = list(self._differing())

    def make(self) -> None:
        _name_parameters(self._parameters)
        owners = [_graph_of(match.nodes[self._nodes[0]]) for match in self._found]
        imports = Imports(self._model)
        wanted = {node.domain: imports.of(owners[0]).get(node.domain, 1) for node in deep_nodes(self._nodes)}
        calls = [self._call(index) for index in range(len(self._found))]
        inner = {value: self._inner_value(value) for value in (*self._inputs, *self._constants)}
        read_in_nodes(self._nodes, inner)
        self._put_calls(calls, owners)
        for match in self._found[1:]:
            for node in reversed(self._nodes):
                remove_node(match.nodes[node])
        owners[0].remove(self._nodes)
        self._add_function(inner, {"": imports.of(owners[0]).get("", 1), **wanted})
        prune_values(match.values[value] for match in self._found for value in self._constants)
        for graph in dict.fromkeys(owners):
            graph.sort()
            imports.add(graph, {self._name.domain: 1})

    def _put_calls(self, calls: Sequence[ir.Node], owners: Sequence[ir.Graph]) -> None:
        graphs = list(all_graphs(self._model))
        for match, call, graph in zip(self._found, calls, owners, strict=True):
            members = list(match.nodes.values())
            graph.insert_before(members[-1], call)
            mine = set(deep_nodes(members))
            for value, made in zip(self._outputs, call.outputs, strict=True):
                hand_over(match.values[value], made, mine, graphs)

    def _may_go_inside(self, value: ir.Value) -> bool:
        """Return whether a constant is the same in all blocks and can be an attribute of a node."""
        first = constant_tensor(value)
        if first is None or isinstance(first, ir.ExternalTensor | SparseInitializer):
            return False
        values = [match.values[value] for match in self._found]
        return all(not each.is_graph_input() and same_tensor(constant_tensor(each), first) for each in values)

    def _read_outside(self, around: Neighbourhood) -> list[ir.Value]:
        members = [set(match.nodes.values()) for match in self._found]
        outputs = [
            value
            for node in self._nodes
            for value in node.outputs
            if any(
                is_read_outside(match.values[value], own, around)
                for match, own in zip(self._found, members, strict=True)
            )
        ]
        if not outputs:
            raise RequestError("the outputs of these nodes are unused, so a function of them would have no effect")
        return outputs

    def _differing(self) -> Iterator[_Parameter]:
        """Return the attributes that differ between blocks; those that always differ together share one."""
        known: dict[Hashable, _Parameter] = {}
        repeats = [list(deep_nodes(match.nodes[node] for node in self._nodes)) for match in self._found]
        for place in zip(*repeats, strict=True):
            for name, attribute in place[0].attributes.items():
                if attribute.type in _GRAPHS:
                    continue
                given = [node.attributes[name] for node in place]
                keys = tuple(map(_key, given))
                if len(set(keys)) == 1 and not attribute.is_ref():
                    continue
                if keys not in known:
                    known[keys] = _Parameter(attribute.type, given)
                    yield known[keys]
                known[keys].places.append((place[0], name))

    def _call(self, index: int) -> ir.Node:
        match = self._found[index]
        attributes = [_renamed(parameter.given[index], parameter.name) for parameter in self._parameters]
        outputs = [_same_type(match.values[value]) for value in self._outputs]
        return ir.Node(
            self._name.domain,
            self._name.name,
            [match.values[value] for value in self._inputs],
            attributes,
            outputs=outputs,
            name=self._edited.fresh_name(self._name.name),
        )

    def _add_function(self, inner: dict[ir.Value, ir.Value], imports: dict[str, int]) -> None:
        constants = [self._constant_node(value, inner[value]) for value in self._constants]
        for value in self._outputs:
            value.name = self._edited.fresh_name(f"{self._name.name}_output")
        for parameter in self._parameters:
            for node, name in parameter.places:
                node.attributes[name] = ir.RefAttr(name, parameter.name, parameter.type)
        for value in (value for node in deep_nodes(self._nodes) for value in node.outputs):
            value.shape = None  # other blocks may have another shape
        body = ir.Graph(
            [inner[value] for value in self._inputs],
            self._outputs,
            nodes=[*constants, *self._nodes],
            opset_imports=imports,
            name=self._name.name,
        )
        attributes = [_default(parameter) for parameter in self._parameters]
        function = ir.Function(self._name.domain, self._name.name, graph=body, attributes=attributes)
        self._model.functions[function.identifier()] = function
        has_defaults = any(attribute.value is not None for attribute in attributes)
        need_ir_version(self._edited, IR_OF_DEFAULTS if has_defaults else IR_OF_FUNCTIONS)

    def _inner_value(self, value: ir.Value) -> ir.Value:
        return ir.Value(name=self._edited.fresh_name(value.name or "input"))

    def _constant_node(self, value: ir.Value, inner: ir.Value) -> ir.Node:
        tensor = constant_tensor(value)
        assert tensor is not None
        name = self._edited.fresh_name(f"{value.name}_constant")
        return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[inner], name=name)


def _same_type(value: ir.Value) -> ir.Value:
    """Return a new tensor that replaces another one."""
    return ir.Value(type=value.type, shape=None if value.shape is None else ir.Shape(value.shape))


def _name_parameters(parameters: Sequence[_Parameter]) -> None:
    """Name attributes of the function after those that they set, with the node's name where ambiguous."""
    wishes = [parameter.places[0][1] for parameter in parameters]
    taken: set[str] = set()
    for parameter, wish in zip(parameters, wishes, strict=True):
        node = parameter.places[0][0]
        own = wish if wishes.count(wish) == 1 else f"{node_label(node)}_{wish}"
        parameter.name = free_name(identifier(own), taken)


def _renamed(attribute: ir.Attr, name: str) -> ir.Attr:
    """Return the same value, or the same reference to an attribute of the enclosing function."""
    if attribute.is_ref():
        return ir.RefAttr(name, attribute.ref_attr_name or "", attribute.type)
    return ir.Attr(name, attribute.type, attribute.value)


def _default(parameter: _Parameter) -> ir.Attr:
    """Return the first block's value, unless it refers to an enclosing function."""
    first = parameter.given[0]
    return ir.Attr(parameter.name, parameter.type, None if first.is_ref() else first.value)


def _key(attribute: ir.Attr) -> Hashable:
    """Return a key that is equal for equal attributes."""
    if attribute.is_ref():
        return ("reference", attribute.ref_attr_name)
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.nbytes > _READ_BYTES or tensor.dtype == ir.DataType.STRING:
            return id(tensor)
        return (tensor.dtype, tuple(map(str, tensor.shape)), tensor.tobytes())
    return value if isinstance(value, int | float | str | bytes | tuple) else repr(value)
