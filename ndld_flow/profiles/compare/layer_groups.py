"""Group layers of two profiles by shared ONNX nodes, so that a fused layer matches its several counterparts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ndld_flow.records.profile import Layer, TensorInfo

Nodes = frozenset[str]
Edge = tuple[int, int]
"""A layer of one profile and one of another."""
_Item = TypeVar("_Item")

_SHARED_ENOUGH = 0.5
"""Layers belong together if they share this part of the smaller one's nodes, by weight."""
_COMMON = 32
"""A node in more layers than this is no evidence for a match."""

NodeSets = Mapping[Nodes, Sequence[int]]
"""Nodes -> the layers built from exactly these."""


def layers_by_nodes(layers: Sequence[Layer]) -> NodeSets:
    """Return the layers with known nodes, by their nodes."""
    found: dict[Nodes, list[int]] = defaultdict(list)
    for at, layer in enumerate(layers):
        if layer.onnx_nodes:
            found[frozenset(layer.onnx_nodes)].append(at)
    return found


def edges_by_nodes(ours: NodeSets, theirs: NodeSets) -> Iterator[Edge]:
    """Yield pairs of layers of two profiles with the same nodes, or that share most of the smaller one's."""
    for nodes in ours.keys() & theirs.keys():
        yield from ((one, other) for one in ours[nodes] for other in theirs[nodes])
    if ours.keys() == theirs.keys():
        return
    weigh = _Weights(ours, theirs)
    ends: tuple[Iterable[Nodes], Iterable[Nodes]] = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    pairs = {(one, other) for one in ends[0] for other in weigh.near(one, 1)}
    pairs |= {(one, other) for other in ends[1] for one in weigh.near(other, 0)}
    for mine, yours in pairs:
        if weigh(mine & yours) >= _SHARED_ENOUGH * min(weigh(mine), weigh(yours)):
            yield from ((one, other) for one in ours[mine] for other in theirs[yours])


class _Weights:
    """Weights of nodes. A constant or shape fused into many layers must not join them into one group."""

    def __init__(self, *sides: NodeSets) -> None:
        self._holders: list[dict[str, list[Nodes]]] = [defaultdict(list) for _ in sides]
        for side, holders in zip(sides, self._holders, strict=True):
            for nodes in side:
                for node in nodes:
                    holders[node].append(nodes)

    def near(self, nodes: Nodes, side: int) -> set[Nodes]:
        """Return the node sets of one side that share a sufficiently rare node."""
        lists = [self._holders[side].get(node, []) for node in nodes]
        return {other for sets in lists if len(sets) <= _COMMON for other in sets}

    def __call__(self, nodes: Nodes) -> float:
        most = (max(len(holders.get(node, ())) for holders in self._holders) for node in nodes)
        return sum(1 / max(count, 1) for count in most)


def components(edges: Iterable[Edge]) -> list[tuple[list[int], list[int]]]:
    """Return the connected groups of layers, each as the layers of either profile."""
    root: dict[tuple[int, int], tuple[int, int]] = {}

    def find(item: tuple[int, int]) -> tuple[int, int]:
        while root.setdefault(item, item) != item:
            root[item] = root[root[item]]
            item = root[item]
        return item

    for one, other in edges:
        root[find((1, other))] = find((0, one))
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for item in root:
        found[find(item)][item[0]].append(item[1])
    return [(sorted(ours), sorted(theirs)) for ours, theirs in found.values()]


def shared_part(ours: Iterable[Layer], theirs: Iterable[Layer]) -> float:
    """Return the Jaccard index of the nodes of two groups of layers; 0 without nodes."""
    mine, yours = ({node for layer in layers for node in layer.onnx_nodes} for layers in (ours, theirs))
    return len(mine & yours) / len(mine | yours) if mine | yours else 0.0


def only_ones(pairs: Iterable[tuple[_Item, _Item]]) -> dict[_Item, _Item]:
    """Return the pairs both of whose ends are in no other pair."""
    kept = list(dict.fromkeys(pairs))
    firsts, seconds = Counter(one for one, _ in kept), Counter(other for _, other in kept)
    return {one: other for one, other in kept if firsts[one] == seconds[other] == 1}


def dims_of(tensors: Sequence[TensorInfo]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of tensors."""
    return tuple(tensor.shape for tensor in tensors)
