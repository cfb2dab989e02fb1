"""Local functions made of nodes, which are called in place of these nodes and of equal blocks elsewhere.

Blocks are equal when operators, connections and attribute types are; weights may differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.functions import IR_OF_DEFAULTS, IR_OF_FUNCTIONS, FunctionName
from ndld_flow.graph.edit.graph_edits import prune_values
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    Pieces,
    check_one_piece,
    deep_nodes,
    is_read_outside,
    outermost,
    read_in_nodes,
    replace_uses,
)
from ndld_flow.graph.edit.pattern_matching import Match, Pairs, Pattern
from ndld_flow.graph.edit.schemas import Imports
from ndld_flow.models.element_types import GRAPHS
from ndld_flow.models.files import all_graphs
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import (
    captured_values,
    fixed_tensor,
    free_name,
    graph_of,
    identifier,
    inputs_given,
    node_label,
    own_subgraphs,
    precision_of,
    read_values,
    remove_node,
)

_READ_BYTES = 2**16
"""Maximum size for comparing tensors by value; larger ones are equal only if they are the same object."""


class SameBlock:
    """Likeness of nodes between which only weights and plain attributes differ."""

    def alignments(self, node: ir.Node, candidate: ir.Node) -> Iterator[Pairs]:
        comparison = _Comparison()
        if comparison.nodes(node, candidate):
            yield comparison.pairs

    def may_be(self, value: ir.Value, candidate: ir.Value) -> bool:
        return _types_agree(value, candidate)


def find_repeats(model: ir.Model, nodes: Sequence[ir.Node], around: Neighbourhood) -> list[Match]:
    """Return the block itself and then its repetitions, in the model's order; they do not overlap.

    The nodes must be in one graph, and nothing outside may depend on some of them while others depend on it.
    """
    pattern, pieces = Pattern(nodes, SameBlock()), Pieces(around, model)
    blocks = [identity_match(nodes)]
    pieces.add(nodes)
    imports, domains = Imports(model), {node.domain for node in deep_nodes(nodes)}
    own = imports.of(nodes[0].graph)
    for graph in all_graphs(model):
        if any(imports.of(graph).get(domain) != own.get(domain) for domain in domains):
            continue  # the operators of these nodes have other versions there
        for candidate in graph:
            for match in pattern.matches(candidate, around):
                if pieces.take(match.nodes.values()):
                    blocks.append(match)
                    break
    return blocks


def kind_of(node: ir.Node) -> Hashable:
    """Return a key that alike nodes share, without regard to their surroundings."""
    attributes = tuple(sorted((attribute.name, attribute.type) for attribute in node.attributes.values()))
    inputs = tuple(value is None for value in inputs_given(node))
    return (node.op_identifier(), attributes, inputs, len(node.outputs), precision_of(node))


def same_tensor(first: ir.TensorProtocol | None, second: ir.TensorProtocol | None) -> bool:
    """Return whether two constants are certainly equal; large ones only if they are the same object."""
    if first is None or second is None or first is second:
        return first is second
    if (first.dtype, tuple(first.shape)) != (second.dtype, tuple(second.shape)) or first.nbytes > _READ_BYTES:
        return False
    return first.tobytes() == second.tobytes() if first.dtype != ir.DataType.STRING else False


def identity_match(nodes: Sequence[ir.Node]) -> Match:
    values = [value for node in nodes for value in (*read_values(node), *node.outputs)]
    return Match({node: node for node in nodes}, {value: value for value in values})


@dataclass
class _Comparison:
    """The comparison of two nodes with their subgraphs."""

    inner: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Tensor of a subgraph -> that of the other."""
    pairs: list[tuple[ir.Value | None, ir.Value | None]] = field(default_factory=list)
    """Outer tensors that are read."""

    def nodes(self, node: ir.Node, candidate: ir.Node) -> bool:
        if kind_of(node) != kind_of(candidate) or not all(map(_types_agree, node.outputs, candidate.outputs)):
            return False
        if not all(map(self._reads, inputs_given(node), inputs_given(candidate))):
            return False
        bodies, others = dict(own_subgraphs(node)), dict(own_subgraphs(candidate))
        return list(bodies) == list(others) and all(map(self._bodies, bodies.values(), others.values()))

    def _bodies(self, body: ir.Graph, other: ir.Graph) -> bool:
        sizes = [(len(g.inputs), len(g.outputs), len(g.initializers), len(g)) for g in (body, other)]
        if sizes[0] != sizes[1]:
            return False
        constants, other_constants = list(body.initializers.values()), list(other.initializers.values())
        if not all(same_tensor(a.const_value, b.const_value) for a, b in zip(constants, other_constants, strict=True)):
            return False
        self.inner.update(zip((*body.inputs, *constants), (*other.inputs, *other_constants), strict=True))
        for node, candidate in zip(body, other, strict=True):
            if not self.nodes(node, candidate):
                return False
            self.inner.update(zip(node.outputs, candidate.outputs, strict=True))
        return all(map(self._reads, body.outputs, other.outputs))

    def _reads(self, value: ir.Value | None, other: ir.Value | None) -> bool:
        if value is not None and value in self.inner:
            return self.inner[value] is other
        self.pairs.append((value, other))
        return True


def _types_agree(value: ir.Value, candidate: ir.Value) -> bool:
    return value.dtype is None or candidate.dtype is None or value.dtype == candidate.dtype


def make_function(
    edited: EditedModel, nodes: Sequence[ir.Node], name: FunctionName, repeats: bool, inside: bool
) -> list[Match]:
    """Move nodes into a new local function and call it in their place, and with `repeats` in place of equal blocks.

    Tensors that the nodes read become inputs, those that other nodes read from them outputs; attributes that differ
    between blocks become attributes of the function. With `inside`, constants that are equal in all blocks move into
    the function. Returns the replaced blocks, the nodes themselves first. Raises `RequestError` for nodes that cannot
    become a function.
    """
    for graph in (edited.model.graph, *(function.graph for function in edited.model.functions.values())):
        graph.sort()
    chosen, around = outermost(nodes), Neighbourhood(edited.model)
    graph = graph_of(chosen[0])
    if any(node.graph is not graph for node in chosen):
        where = [repr(address) for address, each in edited.scopes().items() if any(n.graph is each for n in chosen)]
        raise RequestError(
            f"a function is made of nodes of one graph, and these are in {', '.join(where)}: choose one with `scope`"
        )
    check_one_piece(Pieces(around, edited.model), chosen)
    members = set(chosen)
    nodes = [node for node in graph if node in members]
    blocks = find_repeats(edited.model, nodes, around) if repeats else [identity_match(nodes)]
    _FunctionBuilder(edited, name, blocks, around, inside).build()
    return blocks


@dataclass
class _Parameter:
    """An attribute of the function: its value for each call, and the places in the body that refer to it."""

    type: ir.AttributeType
    given: list[ir.Attr]
    """Values of the blocks, in their order."""
    places: list[tuple[ir.Node, str]] = field(default_factory=list)
    name: str = ""


class _FunctionBuilder:
    """A function under construction. The nodes of the first block become its body."""

    def __init__(
        self, edited: EditedModel, name: FunctionName, blocks: Sequence[Match], around: Neighbourhood, inside: bool
    ) -> None:
        self._model = edited.model
        self._edited = edited
        self._name = name
        self._blocks = blocks
        self._nodes = list(blocks[0].nodes.values())
        read = captured_values(self._nodes)
        self._constants = [value for value in read if inside and self._may_go_inside(value)]
        self._inputs = [value for value in read if value not in self._constants]
        self._outputs = self._read_outside(around)
        self._parameters = list(self._differing())

    def build(self) -> None:
        # Attributes of the function have the names of those that they set, with the node's name where ambiguous.
        wishes = [parameter.places[0][1] for parameter in self._parameters]
        taken: set[str] = set()
        for parameter, wish in zip(self._parameters, wishes, strict=True):
            own = wish if wishes.count(wish) == 1 else f"{node_label(parameter.places[0][0])}_{wish}"
            parameter.name = free_name(identifier(own), taken)
        owners = [graph_of(match.nodes[self._nodes[0]]) for match in self._blocks]
        imports = Imports(self._model)
        wanted = {node.domain: imports.of(owners[0]).get(node.domain, 1) for node in deep_nodes(self._nodes)}
        calls = [self._call(index) for index in range(len(self._blocks))]
        inner = {
            value: ir.Value(name=self._edited.fresh_name(value.name or "input"))
            for value in (*self._inputs, *self._constants)
        }
        read_in_nodes(self._nodes, inner)
        self._put_calls(calls, owners)
        for match in self._blocks[1:]:
            for node in reversed(self._nodes):
                remove_node(match.nodes[node])
        owners[0].remove(self._nodes)
        self._add_function(inner, {"": imports.of(owners[0]).get("", 1), **wanted})
        prune_values(match.values[value] for match in self._blocks for value in self._constants)
        for graph in dict.fromkeys(owners):
            graph.sort()
            imports.add(graph, {self._name.domain: 1})

    def _put_calls(self, calls: Sequence[ir.Node], owners: Sequence[ir.Graph]) -> None:
        graphs = list(all_graphs(self._model))
        for match, call, graph in zip(self._blocks, calls, owners, strict=True):
            members = list(match.nodes.values())
            graph.insert_before(members[-1], call)
            mine = set(deep_nodes(members))
            for value, output in zip(self._outputs, call.outputs, strict=True):
                replace_uses(match.values[value], output, mine, graphs)

    def _may_go_inside(self, value: ir.Value) -> bool:
        """Return whether a constant is the same in all blocks and can be an attribute of a node."""
        first = fixed_tensor(value)
        if first is None or isinstance(first, ir.ExternalTensor | SparseInitializer):
            return False
        values = [match.values[value] for match in self._blocks]
        return all(not each.is_graph_input() and same_tensor(fixed_tensor(each), first) for each in values)

    def _read_outside(self, around: Neighbourhood) -> list[ir.Value]:
        members = [set(match.nodes.values()) for match in self._blocks]
        outputs = [
            value
            for node in self._nodes
            for value in node.outputs
            if any(
                is_read_outside(match.values[value], own, around)
                for match, own in zip(self._blocks, members, strict=True)
            )
        ]
        if not outputs:
            raise RequestError("the outputs of these nodes are unused, so a function of them would have no effect")
        return outputs

    def _differing(self) -> Iterator[_Parameter]:
        """Return the attributes that differ between blocks; those that always differ together share one."""
        known: dict[Hashable, _Parameter] = {}
        repeats = [list(deep_nodes(match.nodes[node] for node in self._nodes)) for match in self._blocks]
        for place in zip(*repeats, strict=True):
            for name, attribute in place[0].attributes.items():
                if attribute.type in GRAPHS:
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
        match = self._blocks[index]
        attributes: list[ir.Attr] = []
        for parameter in self._parameters:
            given = parameter.given[index]
            # a reference to an attribute of the enclosing function stays one
            attributes.append(
                ir.RefAttr(parameter.name, given.ref_attr_name or "", given.type)
                if given.is_ref()
                else ir.Attr(parameter.name, given.type, given.value)
            )
        replaced = [match.values[value] for value in self._outputs]
        outputs = [
            ir.Value(type=value.type, shape=None if value.shape is None else ir.Shape(value.shape))
            for value in replaced
        ]
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
        # the first block's values are the defaults, unless they refer to an enclosing function
        firsts = [(parameter, parameter.given[0]) for parameter in self._parameters]
        attributes = [ir.Attr(p.name, p.type, None if first.is_ref() else first.value) for p, first in firsts]
        function = ir.Function(self._name.domain, self._name.name, graph=body, attributes=attributes)
        self._model.functions[function.identifier()] = function
        has_defaults = any(attribute.value is not None for attribute in attributes)
        self._edited.raise_ir_version(IR_OF_DEFAULTS if has_defaults else IR_OF_FUNCTIONS)

    def _constant_node(self, value: ir.Value, inner: ir.Value) -> ir.Node:
        tensor = fixed_tensor(value)
        assert tensor is not None
        name = self._edited.fresh_name(f"{value.name}_constant")
        return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[inner], name=name)


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
