"""Evidence for matches of layers: shared ONNX nodes, names, and the confidence that each kind of evidence gives.

The confidences are shares of correct matches, measured with known truth on models that were edited, renamed and run
again (`python -m tests.benchmarks.bench_matching` repeats it). Only evidence that was never wrong there has 1."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from ndld_flow.records.comparison import MatchMethod
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


Names = frozenset[str]


def names_of(layers: Sequence[Layer], by_nodes: bool) -> list[Names]:
    """Return the names of each layer: its ONNX nodes, or its own name if nodes are not compared."""
    if by_nodes:
        return [frozenset(layer.onnx_nodes) for layer in layers]
    return [frozenset(filter(None, (layer.name,))) for layer in layers]


def agree(ours: Names, theirs: Names) -> bool:
    """Return whether the names of two layers agree: equal, more than half equal, or one a subset of the other.

    The names of fused layers overlap partly even if their numbers are shifted by one.
    """
    shared = len(ours & theirs)
    return shared > 0 and (2 * shared > len(ours | theirs) or shared in (len(ours), len(theirs)))


class NameTrust:
    """Judges names by pairs of layers that are certain."""

    def __init__(self, ours: Sequence[Names], theirs: Sequence[Names], certain: Mapping[int, int]) -> None:
        known = frozenset[str]().union(*ours), frozenset[str]().union(*theirs)
        self._ours: dict[int, bool] = {}
        self._theirs: dict[int, bool] = {}
        for one, other in certain.items():
            agrees = agree(ours[one], theirs[other])
            # Names missing on the other side neither agree nor contradict.
            if agrees or not (ours[one].isdisjoint(known[1]) and theirs[other].isdisjoint(known[0])):
                self._ours[one] = self._theirs[other] = agrees
        self._order = sorted(self._ours), sorted(self._theirs)

    @property
    def share(self) -> float | None:
        """The share of certain pairs whose names agree; None if none can be judged."""
        return sum(self._ours.values()) / len(self._ours) if self._ours else None

    def agrees(self, one: int) -> bool | None:
        """Return whether the name of one of our layers agrees with that of its certain partner; None if unknown."""
        return self._ours.get(one)

    def forbids(self, one: int, other: int) -> bool:
        """Return whether one of two layers has a certain partner with another name."""
        return self._ours.get(one) is False or self._theirs.get(other) is False

    def around(self, one: int, other: int) -> float | None:
        """Return the share of the nearest judged layers, before and after on both sides, whose names agree."""
        votes = [*self._nearest(self._ours, self._order[0], one), *self._nearest(self._theirs, self._order[1], other)]
        return sum(votes) / len(votes) if votes else None

    @staticmethod
    def _nearest(judged: Mapping[int, bool], order: Sequence[int], at: int) -> list[bool]:
        place = bisect_left(order, at)
        after = place + (place < len(order) and order[place] == at)
        found = [order[place - 1]] if place else []
        found += [order[after]] if after < len(order) else []
        return [judged[one] for one in ([at] if at in judged else found)]


Evidence: TypeAlias = Literal[
    "weights", "weight names", "nodes", "name", "surroundings", "surroundings in order", "flow", "in order",
    "in order, ambiguous", "reads the same", "put in, in order", "anywhere",
]  # fmt: skip
NAMELESS: frozenset[Evidence] = frozenset(["weights", "surroundings", "surroundings in order", "flow"])
"""Evidence that layers of different networks hardly ever have."""
ALIKE = 0.99
"""Confidence for layers at the same position of two profiles with equal features, without weights as proof."""

_METHODS: dict[Evidence, MatchMethod] = {
    "weights": "weights",
    "weight names": "weights",
    "nodes": "onnx nodes",
    "name": "name and type",
    "surroundings": "surroundings",
    "flow": "surroundings",
    "reads the same": "surroundings",
    "anywhere": "type and dims",
}
_SUPPORTED, _HALF_SUPPORTED = 0.8, 0.4
_ALIKE = 0.1
"""Below this share of layers matched by nameless evidence, two profiles may be of different networks."""

_Shares = tuple[float, float, float]
"""Shares for nearly all neighbours matched consistently, about half of them, few of them."""
_Table = dict[Evidence, tuple[_Shares, _Shares, _Shares]]
"""Shares for names that agree, names missing on the other side, names of other layers."""
_OF_ALIKE: _Table = {
    "weights": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "weight names": ((0.97, 0.97, 0.95), (0.97, 0.97, 0.95), (0.9, 0.9, 0.8)),
    "nodes": ((0.99, 0.99, 0.92), (0.99, 0.99, 0.92), (0.9, 0.9, 0.8)),
    "name": ((0.96, 0.95, 0.9), (0.96, 0.95, 0.9), (0.9, 0.9, 0.8)),
    "surroundings": ((0.99, 0.99, 0.97), (0.99, 0.99, 0.95), (0.99, 0.97, 0.95)),
    "surroundings in order": ((0.99, 0.99, 0.95), (0.98, 0.97, 0.9), (0.95, 0.7, 0.7)),
    "flow": ((0.99, 0.99, 0.99), (0.99, 0.98, 0.97), (0.98, 0.97, 0.9)),
    "in order": ((0.99, 0.98, 0.9), (0.98, 0.87, 0.88), (0.94, 0.4, 0.5)),
    "in order, ambiguous": ((0.97, 0.97, 0.8), (0.72, 0.72, 0.72), (0.25, 0.3, 0.2)),
    "reads the same": ((0.99, 0.98, 0.85), (0.99, 0.97, 0.88), (0.99, 0.97, 0.85)),
    "put in, in order": ((0.9, 0.8, 0.8), (0.75, 0.75, 0.6), (0.58, 0.4, 0.3)),
    "anywhere": ((0.7, 0.7, 0.6), (0.95, 0.95, 0.7), (0.7, 0.7, 0.25)),
}
_OF_UNLIKE: _Table = {
    "weights": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "weight names": ((0.7, 0.7, 0.5), (0.7, 0.7, 0.5), (0.5, 0.5, 0.3)),
    "nodes": ((0.95, 0.85, 0.25), (0.95, 0.85, 0.25), (0.5, 0.5, 0.2)),
    "name": ((0.9, 0.8, 0.5), (0.9, 0.8, 0.5), (0.5, 0.5, 0.2)),
    "surroundings": ((0.94, 0.94, 0.9), (0.84, 0.84, 0.8), (0.8, 0.66, 0.5)),
    "surroundings in order": ((0.94, 0.94, 0.9), (0.84, 0.84, 0.8), (0.8, 0.66, 0.5)),
    "flow": ((0.5, 0.8, 0.8), (0.8, 0.8, 0.8), (0.5, 0.5, 0.5)),
    "in order": ((0.95, 0.95, 0.3), (0.58, 0.6, 0.6), (0.4, 0.05, 0.02)),
    "in order, ambiguous": ((0.97, 0.9, 0.5), (0.45, 0.28, 0.2), (0.02, 0.01, 0.01)),
    "reads the same": ((0.95, 0.6, 0.9), (0.3, 0.05, 0.15), (0.75, 0.06, 0.18)),
    "put in, in order": ((0.3, 0.1, 0.1), (0.05, 0.05, 0.05), (0.02, 0.02, 0.02)),
    "anywhere": ((0.7, 0.7, 0.6), (0.8, 0.7, 0.5), (0.5, 0.3, 0.3)),
}


def method_of(evidence: Evidence) -> MatchMethod:
    """Return the displayed method of the evidence."""
    return _METHODS.get(evidence, "type and dims in order")


def confidence_of(evidence: Evidence, support: float, names_agree: bool | None, similarity: float) -> float:
    """Return the probability that a match is correct.

    `support` is the share of neighbours matched consistently, `similarity` the share of all layers matched by nameless
    evidence. `names_agree` is None if the names of one side do not occur on the other.
    """
    table = _OF_ALIKE if similarity >= _ALIKE else _OF_UNLIKE
    shares = table[evidence][(True, None, False).index(names_agree)]
    return shares[0 if support >= _SUPPORTED else 1 if support >= _HALF_SUPPORTED else 2]
