"""Repetitions of a block of nodes: equal operators, connections and attribute types, with other weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import onnx_ir as ir

from ndld_flow.graph.edit.function_names import Imports
from ndld_flow.graph.edit.neighbourhood import Neighbourhood, read_values
from ndld_flow.graph.edit.node_pieces import Pieces, deep_nodes
from ndld_flow.graph.edit.pattern_matching import Match, Pairs, Pattern
from ndld_flow.models.files import all_graphs
from ndld_flow.models.node_precision import precision_of
from ndld_flow.models.scopes import own_subgraphs

_READ_BYTES = 2**16
"""Maximum size for comparing constants in subgraphs by value."""


class SameBlock:
    """Options of the comparison; nodes are alike when only weights and plain attributes differ between them."""

    def alignments(self, node: ir.Node, candidate: ir.Node) -> Iterator[Pairs]:
        pairs: list[tuple[ir.Value | None, ir.Value | None]] = []
        if _nodes_alike(node, candidate, {}, pairs):
            yield pairs

    def may_be(self, value: ir.Value, candidate: ir.Value) -> bool:
        return _types_agree(value, candidate)


def find_repeats(model: ir.Model, nodes: Sequence[ir.Node], around: Neighbourhood) -> list[Match]:
    """Return the block itself and then its repetitions, in the model's order; they do not overlap.

    The nodes must be in one graph, and nothing outside may depend on some of them while others depend on it.
    """
    pattern, pieces = Pattern(nodes, SameBlock()), Pieces(around, model)
    found = [itself(nodes)]
    pieces.add(nodes)
    for graph in _graphs_of_same_opsets(model, nodes):
        for candidate in graph:
            for match in pattern.matches(candidate, around):
                if pieces.take(match.nodes.values()):
                    found.append(match)
                    break
    return found


def kind_of(node: ir.Node) -> Hashable:
    """Return a key that alike nodes share, without regard to their surroundings."""
    attributes = tuple(sorted((attribute.name, attribute.type) for attribute in node.attributes.values()))
    inputs = tuple(value is None for value in _inputs(node))
    return (node.op_identifier(), attributes, inputs, len(node.outputs), precision_of(node))


def same_tensor(first: ir.TensorProtocol | None, second: ir.TensorProtocol | None) -> bool:
    """Return whether two constants are certainly equal; large ones only if they are the same object."""
    if first is None or second is None or first is second:
        return first is second
    if (first.dtype, tuple(first.shape)) != (second.dtype, tuple(second.shape)) or first.nbytes > _READ_BYTES:
        return False
    return first.tobytes() == second.tobytes() if first.dtype != ir.DataType.STRING else False


def itself(nodes: Sequence[ir.Node]) -> Match:
    values = [value for node in nodes for value in (*read_values(node), *node.outputs)]
    return Match({node: node for node in nodes}, {value: value for value in values})


def _graphs_of_same_opsets(model: ir.Model, nodes: Sequence[ir.Node]) -> Iterator[ir.Graph]:
    """Return the version of a node's operator, which depends on the imports of its function."""
    imports, domains = Imports(model), {node.domain for node in deep_nodes(nodes)}
    own = imports.of(nodes[0].graph)
    for graph in all_graphs(model):
        if all(imports.of(graph).get(domain) == own.get(domain) for domain in domains):
            yield graph


def _nodes_alike(
    node: ir.Node,
    candidate: ir.Node,
    inner: dict[ir.Value, ir.Value],
    pairs: list[tuple[ir.Value | None, ir.Value | None]],
) -> bool:
    """Compare two nodes with their subgraphs. `inner` maps tensors of subgraphs, `pairs` collects outer tensors."""
    if kind_of(node) != kind_of(candidate) or not all(map(_types_agree, node.outputs, candidate.outputs)):
        return False
    for value, found in zip(_inputs(node), _inputs(candidate), strict=True):
        if not _reads_alike(value, found, inner, pairs):
            return False
    bodies, others = list(own_subgraphs(node)), list(own_subgraphs(candidate))
    return [name for name, _ in bodies] == [name for name, _ in others] and all(
        _bodies_alike(body, other, inner, pairs) for (_, body), (_, other) in zip(bodies, others, strict=True)
    )


def _bodies_alike(
    body: ir.Graph,
    other: ir.Graph,
    inner: dict[ir.Value, ir.Value],
    pairs: list[tuple[ir.Value | None, ir.Value | None]],
) -> bool:
    constants, other_constants = list(body.initializers.values()), list(other.initializers.values())
    sizes = [(len(g.inputs), len(g.outputs), len(g.initializers), len(g)) for g in (body, other)]
    if sizes[0] != sizes[1]:
        return False
    if not all(same_tensor(a.const_value, b.const_value) for a, b in zip(constants, other_constants, strict=True)):
        return False
    inner.update(zip((*body.inputs, *constants), (*other.inputs, *other_constants), strict=True))
    for node, candidate in zip(body, other, strict=True):
        if not _nodes_alike(node, candidate, inner, pairs):
            return False
        inner.update(zip(node.outputs, candidate.outputs, strict=True))
    return all(_reads_alike(a, b, inner, pairs) for a, b in zip(body.outputs, other.outputs, strict=True))


def _reads_alike(
    value: ir.Value | None,
    found: ir.Value | None,
    inner: dict[ir.Value, ir.Value],
    pairs: list[tuple[ir.Value | None, ir.Value | None]],
) -> bool:
    if value is not None and value in inner:
        return inner[value] is found
    pairs.append((value, found))
    return True


def _inputs(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return the inputs of a node without omitted optional inputs at the end."""
    inputs = node.inputs
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return tuple(inputs)


def _types_agree(value: ir.Value, candidate: ir.Value) -> bool:
    return value.dtype is None or candidate.dtype is None or value.dtype == candidate.dtype
