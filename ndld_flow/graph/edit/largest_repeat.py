"""The largest block of nodes that stands several times in a model, such as a transformer's layer.

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
"""Stretches of a graph that are looked at, those first that save most by themselves."""
_TRIED = 64
"""Blocks whose wiring is compared."""


@dataclass(frozen=True)
class _Stretch:
    """`size` nodes from `first` on have the same operators as those `distance` further."""

    first: int
    size: int
    distance: int

    @property
    def repeats(self) -> int:
        """How many blocks of `distance` nodes follow each other in it; 1 when blocks stand apart."""
        return (self.size + self.distance) // self.distance

    @property
    def block(self) -> int:
        """Size of the largest block that may repeat."""
        return min(self.size, self.distance)

    @property
    def slack(self) -> int:
        """By how many nodes the first block may begin later without a block being lost at the end."""
        return self.size + self.distance - self.repeats * self.distance if self.repeats > 1 else 0


@dataclass(frozen=True)
class _Candidate:
    """Nodes of a graph that may stand again, with what their repeats would save."""

    nodes: Sequence[ir.Node]
    saves: int


def largest_repeat(model: ir.Model, min_nodes: int, around: Neighbourhood) -> list[Match]:
    """The block whose repeats save the most nodes, and its repeats. The model's graphs must be sorted.

    Raises `RequestError` when no connected block of that many nodes stands twice.
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
            f"no block of {min_nodes} or more nodes stands twice in this model; ask for a smaller one by `min_nodes`, "
            "or select its nodes"
        )
    return best


def _connected(model: ir.Model, nodes: Sequence[ir.Node], around: Neighbourhood) -> tuple[ir.Node, ...]:
    """The largest connected part: the order of nodes puts in what belongs to others. Empty if it has an obstacle."""
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
    """The most promising blocks of the whole model, the best first."""
    numbers: dict[object, int] = {}
    graphs = [list(graph) for graph in all_graphs(model)]
    kinds = [
        np.array([numbers.setdefault(kind_of(node), len(numbers)) for node in nodes], np.int64) for nodes in graphs
    ]
    seen: dict[tuple[bytes, int], _Candidate] = {}
    for nodes, own in zip(graphs, kinds, strict=True):
        crossing = _crossing(nodes, around)
        for stretch in _stretches(own, min_nodes)[:_LOOKED_AT]:
            # the second block is a candidate of its own: the first may read other things than the rest
            for first in _places(stretch, crossing):
                word = own[first : first + stretch.block].tobytes()
                saves = (sum(_count(word, other) for other in kinds) - 1) * stretch.block
                seen.setdefault((word, first), _Candidate(nodes[first : first + stretch.block], saves))
    return sorted(seen.values(), key=lambda candidate: -candidate.saves)[:_TRIED]


def _count(word: bytes, kinds: Kinds) -> int:
    """How often a block's kinds stand in a graph without sharing a node."""
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
    """All stretches with a block that is large enough, those that save most first."""
    found = [
        _Stretch(first, size, distance)
        for distance in range(min_nodes, len(kinds) - min_nodes + 1)
        for first, size in _runs(kinds[:-distance] == kinds[distance:], min_nodes)
    ]
    return sorted(found, key=lambda each: (-max(each.repeats - 1, 1) * each.block, each.distance, each.first))


def _runs(equal: npt.NDArray[np.bool_], min_size: int) -> Iterator[tuple[int, int]]:
    """First and size of each run of truth that is long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    firsts, sizes = edges[::2], edges[1::2] - edges[::2]
    long = sizes >= min_size
    return zip(firsts[long].tolist(), sizes[long].tolist(), strict=True)


def _places(stretch: _Stretch, crossing: Kinds) -> tuple[int, int]:
    """Where a stretch's first two blocks begin so that the fewest tensors go in and out: a layer, not two halves."""
    begins = range(stretch.first, stretch.first + stretch.slack + 1)
    best = min(begins, key=lambda first: crossing[first] + crossing[first + stretch.block])
    return best, best + stretch.distance


def _crossing(nodes: Sequence[ir.Node], around: Neighbourhood) -> Kinds:
    """How many tensors are made before each place in the order of the nodes and read after it."""
    position = {node: place for place, node in enumerate(nodes)}
    change = np.zeros(len(nodes) + 2, np.int64)
    for made, node in enumerate(nodes):
        for value in node.outputs:
            last = max((position.get(reader, made) for reader in around.readers(value)), default=made)
            change[made + 1] += 1
            change[last + 1] -= 1
    return np.cumsum(change)
