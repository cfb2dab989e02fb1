"""Repeated blocks of nodes: equal operators, connections and attribute types, with other weights.

The largest block is found from the order of nodes, because exporters write a graph layer by layer: from some position
on, the operators equal those `distance` nodes further. Such stretches are cheap to find, by one comparison of arrays
per distance; connections are compared only for the best of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
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


Kinds = npt.NDArray[np.int64]
_LOOKED_AT = 256
"""Maximum number of stretches of a graph to examine, those with the largest savings first."""
_TRIED = 64
"""Maximum number of blocks whose connections are compared."""


@dataclass(frozen=True)
class _Stretch:
    """A stretch: `size` nodes from `first` on have the same operators as those `distance` further."""

    first: int
    size: int
    distance: int

    @property
    def repeats(self) -> int:
        """Return how many blocks of `distance` nodes are adjacent in it; 1 when the blocks are separate."""
        return (self.size + self.distance) // self.distance

    @property
    def block(self) -> int:
        """Maximum size of a repeated block."""
        return min(self.size, self.distance)

    @property
    def slack(self) -> int:
        """Number of nodes by which the first block can start later without losing a block at the end."""
        return self.size + self.distance - self.repeats * self.distance if self.repeats > 1 else 0


@dataclass(frozen=True)
class _Candidate:
    """A candidate block of nodes, with the number of nodes that its repetitions would save."""

    nodes: Sequence[ir.Node]
    saves: int


def largest_repeat(model: ir.Model, min_nodes: int, around: Neighbourhood) -> list[Match]:
    """Return the block whose repetitions save the most nodes, with them. The model's graphs must be sorted.

    Raises `RequestError` when no connected block of that many nodes occurs twice.
    """
    best: list[Match] = []
    tried: set[tuple[ir.Node, ...]] = set()
    for candidate in _candidates(model, min_nodes, around):
        if candidate.saves <= _saved(best):
            break
        nodes = _connected(model, candidate.nodes, around)
        if len(nodes) >= min_nodes and nodes not in tried:
            tried.add(nodes)
            best = max(best, find_repeats(model, nodes, around), key=_saved)
    if not _saved(best):
        raise RequestError(
            f"no block of {min_nodes} or more nodes occurs twice in this model; allow a smaller one by `min_nodes`, "
            "or select its nodes"
        )
    return best


def _connected(model: ir.Model, nodes: Sequence[ir.Node], around: Neighbourhood) -> tuple[ir.Node, ...]:
    """Return the largest connected part, without foreign nodes in between; empty if an outside node prevents it."""
    parts: list[set[ir.Node]] = []
    left = list(nodes)
    while left:
        parts.append(set(Pattern(left, SameBlock()).reached))
        left = [node for node in left if node not in parts[-1]]
    largest = max(parts, key=len)
    part = tuple(node for node in nodes if node in largest)
    return part if len(parts) == 1 or Pieces(around, model).obstacle(part) is None else ()


def _saved(found: Sequence[Match]) -> int:
    return (len(found) - 1) * len(found[0].nodes) if found else 0


def _candidates(model: ir.Model, min_nodes: int, around: Neighbourhood) -> list[_Candidate]:
    """Return the most promising blocks of the whole model, the best first."""
    numbers: dict[object, int] = {}
    graphs = [list(graph) for graph in all_graphs(model)]
    kinds = [
        np.array([numbers.setdefault(kind_of(node), len(numbers)) for node in nodes], np.int64) for nodes in graphs
    ]
    seen: dict[tuple[bytes, int], _Candidate] = {}
    for nodes, own in zip(graphs, kinds, strict=True):
        crossing = _crossing(nodes, around)
        for stretch in _stretches(own, min_nodes)[:_LOOKED_AT]:
            # the second block is also a candidate: the first often has different inputs
            for first in _places(stretch, crossing):
                word = own[first : first + stretch.block].tobytes()
                saves = (sum(_count(word, other) for other in kinds) - 1) * stretch.block
                seen.setdefault((word, first), _Candidate(nodes[first : first + stretch.block], saves))
    return sorted(seen.values(), key=lambda candidate: -candidate.saves)[:_TRIED]


def _count(word: bytes, kinds: Kinds) -> int:
    """Return the number of non-overlapping occurrences of a sequence of node kinds in a graph."""
    data, width = kinds.tobytes(), kinds.itemsize
    count, place = 0, data.find(word)
    while place >= 0:
        if place % width:
            place = data.find(word, place + 1)
            continue
        count += 1
        place = data.find(word, place + len(word))
    return count


def _stretches(kinds: Kinds, min_nodes: int) -> list[_Stretch]:
    """Return all stretches with a block of sufficient size, those with the largest savings first."""
    found = [
        _Stretch(first, size, distance)
        for distance in range(min_nodes, len(kinds) - min_nodes + 1)
        for first, size in _runs(kinds[:-distance] == kinds[distance:], min_nodes)
    ]
    return sorted(found, key=lambda each: (-max(each.repeats - 1, 1) * each.block, each.distance, each.first))


def _runs(equal: npt.NDArray[np.bool_], min_size: int) -> Iterator[tuple[int, int]]:
    """Return start and length of each run of True of sufficient length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    firsts, sizes = edges[::2], edges[1::2] - edges[::2]
    long = sizes >= min_size
    return zip(firsts[long].tolist(), sizes[long].tolist(), strict=True)


def _places(stretch: _Stretch, crossing: Kinds) -> tuple[int, int]:
    """Return the start of the first two blocks with the fewest tensors across: a layer instead of two halves."""
    begins = range(stretch.first, stretch.first + stretch.slack + 1)
    best = min(begins, key=lambda first: crossing[first] + crossing[first + stretch.block])
    return best, best + stretch.distance


def _crossing(nodes: Sequence[ir.Node], around: Neighbourhood) -> Kinds:
    """Return the number of tensors that cross each position in the order of the nodes."""
    position = {node: place for place, node in enumerate(nodes)}
    change = np.zeros(len(nodes) + 2, np.int64)
    for made, node in enumerate(nodes):
        for value in node.outputs:
            last = max((position.get(reader, made) for reader in around.readers(value)), default=made)
            change[made + 1] += 1
            change[last + 1] -= 1
    return np.cumsum(change)
