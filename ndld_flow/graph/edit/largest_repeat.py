"""The largest block of nodes that occurs several times in a model, such as a transformer's layer.

Exporters write a graph layer by layer. So a block that repeats shows in the order of the nodes: from some place on, the
operators are the same as those `distance` nodes further. Such stretches are cheap to find (one comparison of arrays per
distance); whether the wiring is the same too is asked of the few best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.edit.node_pieces import Pieces
from ndld_flow.graph.edit.pattern_matching import Match, Pattern
from ndld_flow.graph.edit.repeats import SameBlock, find_repeats, kind_of
from ndld_flow.models.files import all_graphs

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
