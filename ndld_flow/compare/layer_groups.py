"""Groups of layers in the making: who is in them, how they came in, and how sure that is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ndld_flow.records.comparison import MatchMethod
from ndld_flow.records.profile import Layer, Profile, TensorInfo

Nodes = frozenset[str]

_SHARED_ENOUGH = 0.5
"""Layers belong together when they share so much of the smaller one's nodes, by weight."""
_COMMON = 32
"""A node that so many different layers came from says nothing about which of them belong together."""


@dataclass(eq=False)
class LayerGroup:
    """Layers that do the same work."""

    layers: dict[int, list[int]]
    """Profile -> positions in its layers."""
    methods: dict[int, MatchMethod]
    """How each profile's layers came in; `unmatched` for the only profile."""
    confidence: float = 1.0

    def take_in(self, other: LayerGroup, method: MatchMethod, confidence: float) -> None:
        """Add a group of other profiles."""
        if len(self.methods) == 1:
            self.methods = dict.fromkeys(self.methods, method)
        self.layers |= other.layers
        self.methods |= dict.fromkeys(other.layers, method)
        self.confidence = min(self.confidence, other.confidence, confidence)


def group_by_nodes(profiles: Sequence[Profile]) -> list[LayerGroup]:
    """Every layer in a group: with those of other profiles that came from the same ONNX nodes, or alone.

    A fused layer and the several it stands for are one group: layers are joined over the nodes they share, and the
    groups are the connected components. The confidence is the share of nodes that all have in common (Jaccard).
    """
    layers_of = _layers_by_nodes(profiles)
    groups = []
    grouped: set[tuple[int, int]] = set()
    for sets in _components(layers_of):
        members = sorted(layer for nodes in sets for layer in layers_of[nodes])
        found: dict[int, list[int]] = defaultdict(list)
        for profile, position in members:
            found[profile].append(position)
        if len(found) > 1:
            grouped.update(members)
            groups.append(LayerGroup(dict(found), dict.fromkeys(found, "onnx nodes"), _agreement(sets, layers_of)))
    groups += (
        LayerGroup({number: [position]}, {number: "unmatched"})
        for number, profile in enumerate(profiles)
        for position in range(len(profile.layers))
        if (number, position) not in grouped
    )
    return groups


def _layers_by_nodes(profiles: Sequence[Profile]) -> dict[Nodes, list[tuple[int, int]]]:
    found: dict[Nodes, list[tuple[int, int]]] = defaultdict(list)
    for number, profile in enumerate(profiles):
        for position, layer in enumerate(profile.layers):
            if layer.onnx_nodes:
                found[frozenset(layer.onnx_nodes)].append((number, position))
    return found


def _components(layers_of: dict[Nodes, list[tuple[int, int]]]) -> list[list[Nodes]]:
    """Sets of nodes that belong together, over all profiles."""
    root = {nodes: nodes for nodes in layers_of}

    def find(nodes: Nodes) -> Nodes:
        while root[nodes] is not nodes:
            root[nodes] = root[root[nodes]]
            nodes = root[nodes]
        return nodes

    for one, other in _overlapping(layers_of):
        root[find(other)] = find(one)
    found: dict[Nodes, list[Nodes]] = defaultdict(list)
    for nodes in layers_of:
        found[find(nodes)].append(nodes)
    return list(found.values())


def _overlapping(layers_of: dict[Nodes, list[tuple[int, int]]]) -> Iterator[tuple[Nodes, Nodes]]:
    """Different sets, of different profiles, that share enough."""
    profiles_of = {nodes: {profile for profile, _ in layers} for nodes, layers in layers_of.items()}
    every = max((len(profiles) for profiles in profiles_of.values()), default=0)
    # What is in all profiles is found by those that overlap with it.
    searching = [nodes for nodes, profiles in profiles_of.items() if len(profiles) < every or every == 1]
    if not searching:
        return
    holders = _Holders(profiles_of)
    for nodes in searching:
        for other in holders.near(nodes):
            apart = len(profiles_of[nodes] | profiles_of[other]) > 1
            smaller = min(holders.weight(nodes), holders.weight(other))
            if apart and holders.weight(nodes & other) >= _SHARED_ENOUGH * smaller:
                yield nodes, other


class _Holders:
    """Which sets hold a node."""

    def __init__(self, profiles_of: dict[Nodes, set[int]]) -> None:
        self._sets_with: dict[str, list[Nodes]] = defaultdict(list)
        for nodes in profiles_of:
            for node in nodes:
                self._sets_with[node].append(nodes)
        self._weights = {node: self._weigh(sets, profiles_of) for node, sets in self._sets_with.items()}

    def near(self, nodes: Nodes) -> set[Nodes]:
        """Other sets that share a node that is not everywhere."""
        lists = [self._sets_with[node] for node in nodes]
        return {other for sets in lists if len(sets) <= _COMMON for other in sets} - {nodes}

    def weight(self, nodes: Nodes) -> float:
        """A constant or a shape that many layers took in weighs little: it must not weld them into one."""
        return sum(self._weights[node] for node in nodes)

    def _weigh(self, sets: list[Nodes], profiles_of: dict[Nodes, set[int]]) -> float:
        if len(sets) == 1:
            return 1.0
        return 1 / max(Counter(profile for nodes in sets for profile in profiles_of[nodes]).values())


def _agreement(sets: list[Nodes], layers_of: dict[Nodes, list[tuple[int, int]]]) -> float:
    """The least Jaccard index of any two profiles' nodes."""
    if len(sets) == 1:
        return 1.0
    of_profile: dict[int, set[str]] = defaultdict(set)
    for nodes in sets:
        for profile, _ in layers_of[nodes]:
            of_profile[profile] |= nodes
    different = set(map(frozenset, of_profile.values()))
    return min((len(one & other) / len(one | other) for one, other in combinations(different, 2)), default=1.0)


def final_home(group: LayerGroup, joined: dict[int, LayerGroup]) -> LayerGroup:
    """Where a group is in the end: `joined` tells, by identity, which group took in which."""
    while id(group) in joined:
        group = joined[id(group)]
    return group


def first_layer(group: LayerGroup, profiles: Sequence[Profile]) -> Layer:
    """Of its first profile."""
    number, positions = next(iter(group.layers.items()))
    return profiles[number].layers[positions[0]]


def dims_of(tensors: Sequence[TensorInfo]) -> tuple[tuple[int, ...], ...]:
    """Shapes of tensors."""
    return tuple(tensor.shape for tensor in tensors)
