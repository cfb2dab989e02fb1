"""Evidence for matches of layers: features that do not depend on names, shared ONNX nodes, names, and confidence.

Each feature is interned as a number, so that features of several profiles compare as integers. The confidences are
shares of correct matches, measured with known truth on models that were edited, renamed and run again
(`python -m tests.benchmarks.bench_matching` repeats it). Only evidence that was never wrong there has 1."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, TypeAlias, TypeVar

from ndld_flow.records.comparison import MatchMethod
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.profile import Layer, Profile, TensorInfo

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
    by_nodes: dict[Nodes, list[int]] = defaultdict(list)
    for at, layer in enumerate(layers):
        if layer.onnx_nodes:
            by_nodes[frozenset(layer.onnx_nodes)].append(at)
    return by_nodes


def edges_by_nodes(ours: NodeSets, theirs: NodeSets) -> Iterator[Edge]:
    """Yield pairs of layers of two profiles with the same nodes, or that share most of the smaller one's."""
    for nodes in ours.keys() & theirs.keys():
        yield from ((our_at, their_at) for our_at in ours[nodes] for their_at in theirs[nodes])
    if ours.keys() == theirs.keys():
        return
    weigh = _Weights(ours, theirs)
    ends: tuple[Iterable[Nodes], Iterable[Nodes]] = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    pairs = {(mine, yours) for mine in ends[0] for yours in weigh.near(mine, 1)}
    pairs |= {(mine, yours) for yours in ends[1] for mine in weigh.near(yours, 0)}
    for mine, yours in pairs:
        if weigh(mine & yours) >= _SHARED_ENOUGH * min(weigh(mine), weigh(yours)):
            yield from ((our_at, their_at) for our_at in ours[mine] for their_at in theirs[yours])


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

    for our_at, their_at in edges:
        root[find((1, their_at))] = find((0, our_at))
    groups: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for item in root:
        groups[find(item)][item[0]].append(item[1])
    return [(sorted(ours), sorted(theirs)) for ours, theirs in groups.values()]


def shared_part(ours: Iterable[Layer], theirs: Iterable[Layer]) -> float:
    """Return the Jaccard index of the nodes of two groups of layers; 0 without nodes."""
    mine, yours = ({node for layer in layers for node in layer.onnx_nodes} for layers in (ours, theirs))
    return len(mine & yours) / len(mine | yours) if mine | yours else 0.0


def unique_pairs(pairs: Iterable[tuple[_Item, _Item]]) -> dict[_Item, _Item]:
    """Return the pairs both of whose ends are in no other pair."""
    kept = list(dict.fromkeys(pairs))
    firsts, seconds = Counter(first for first, _ in kept), Counter(second for _, second in kept)
    return {first: second for first, second in kept if firsts[first] == seconds[second] == 1}


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
        for our_at, their_at in certain.items():
            agrees = agree(ours[our_at], theirs[their_at])
            # Names missing on the other side neither agree nor contradict.
            if agrees or not (ours[our_at].isdisjoint(known[1]) and theirs[their_at].isdisjoint(known[0])):
                self._ours[our_at] = self._theirs[their_at] = agrees
        self._order = sorted(self._ours), sorted(self._theirs)

    @property
    def share(self) -> float | None:
        """The share of certain pairs whose names agree; None if none can be judged."""
        return sum(self._ours.values()) / len(self._ours) if self._ours else None

    def agrees(self, our_at: int) -> bool | None:
        """Return whether the name of one of our layers agrees with that of its certain partner; None if unknown."""
        return self._ours.get(our_at)

    def forbids(self, our_at: int, their_at: int) -> bool:
        """Return whether one of two layers has a certain partner with another name."""
        return self._ours.get(our_at) is False or self._theirs.get(their_at) is False

    def around(self, our_at: int, their_at: int) -> float | None:
        """Return the share of the nearest judged layers, before and after on both sides, whose names agree."""
        votes = [
            *self._nearest(self._ours, self._order[0], our_at),
            *self._nearest(self._theirs, self._order[1], their_at),
        ]
        return sum(votes) / len(votes) if votes else None

    @staticmethod
    def _nearest(judged: Mapping[int, bool], order: Sequence[int], at: int) -> list[bool]:
        place = bisect_left(order, at)
        after = place + (place < len(order) and order[place] == at)
        neighbours = [order[place - 1]] if place else []
        neighbours += [order[after]] if after < len(order) else []
        return [judged[neighbour] for neighbour in ([at] if at in judged else neighbours)]


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


_FAMILIES = {
    "conv": ("conv", "fusedconv", "nhwcconv", "nhwcfusedconv", "convolution", "caskconvolution", "caskgemmconvolution",
             "cudnnconvolution", "cudadepthwiseconvolution", "fusedconvactconvolution", "groupconvolution",
             "depthwiseconvolution", "cutensorconvolution", "qlinearconv", "convinteger"),
    "deconv": ("convtranspose", "deconvolution", "caskdeconvolution", "caskdeconvolutionv2", "cudnndeconvolution",
               "fusedconvtranspose"),
    "matmul": ("matmul", "gemm", "fusedmatmul", "fusedgemm", "transposematmul", "matrixmultiply", "caskgemm",
               "caskgemmmatrixmultiply", "fullyconnected", "caskfullyconnected", "cublas", "matmulinteger",
               "qlinearmatmul", "qgemm", "matmulnbits", "dynamicquantizematmul", "matmulintegertofloat"),
    "pool": ("maxpool", "averagepool", "globalaveragepool", "globalmaxpool", "pooling", "tiledpooling", "caskpooling",
             "cudnnpooling", "qlinearaveragepool", "qlinearglobalaveragepool"),
    "softmax": ("softmax", "caskosoftmax", "softmaxv2", "cudasoftmax", "casksoftmax", "casksoftmaxv2", "extsoftmax"),
    "normalization": ("layernormalization", "skiplayernormalization", "normalization", "simplifiedlayernormalization",
                      "skipsimplifiedlayernormalization"),
    "resize": ("resize", "upsample", "resizenearest", "resizelinear"),
    "reduce": ("reduce", "reducemean", "reducesum", "reducemax", "reducemin", "cudareduce"),
    "concat": ("concat", "concatenation"),
    "quantize": ("quantize", "quantizelinear", "dynamicquantizelinear"),
    "dequantize": ("dequantize", "dequantizelinear"),
}  # fmt: skip
_FAMILY = {word: family for family, words in _FAMILIES.items() for word in words}


def kind_of(layer: Layer) -> str:
    """Return the kind of a layer: ONNX Runtime's `FusedConv` and TensorRT's `CaskConvolution` are `conv`. For layers
    inserted by the runtime (reformat, cast, copy) the kind is the role.
    """
    is_named = layer.role in ("compute", "control") or layer.type in QUANTIZING_TYPES
    return _kind(layer.type) if is_named else layer.role


@lru_cache(maxsize=4096)
def _kind(type_: str) -> str:
    word = re.sub(r"[^a-z0-9]|_?nchwc$", "", type_.rpartition(".")[2][:100].lower())
    return _FAMILY.get(word) or _FAMILY.get(re.sub(r"v\d+$", "", word), word)


RADIUS = 3
"""Maximum radius, in steps of the data flow, of the surroundings that identify a layer. Near an edit a smaller one
matches.
"""
_OUTSIDE = -1
_PASSING = ("reformat", "quantize", "dequantize", "cast", "copy", "sync")
"""Kinds of layers that only pass data on; they may differ between exports of one model."""
_COMMUTATIVE = ("add", "mul", "sum", "max", "min", "mean", "and", "or", "equal", "qlinearadd", "qlinearmul")


class Level(IntEnum):
    """Levels of equality of layers, from all features to the type alone."""

    CONTENTS = 0
    """Shapes, window and values of the weights."""
    SHAPES = 1
    """Shapes of all inputs and outputs, window, sizes of weights."""
    OUTPUT = 2
    """Shape of the first output without the batch, window, size of the largest weight."""
    FREE = 3
    """Window, size of the largest weight, rank: the same network at other shapes."""
    TYPE = 4
    """Type only, as without layer information."""


class Interner:
    """Assigns equal numbers to equal values."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


class LayerFeatures:
    """Name-independent features of the layers of one profile."""

    def __init__(self, profile: Profile, intern: Interner, models: frozenset[str] = frozenset()) -> None:
        self.models = models
        """Digests of the measured models."""
        self.layers = profile.layers
        self._intern = intern
        self.kinds = [kind_of(layer) for layer in self.layers]
        self.computing = [at for at, kind in enumerate(self.kinds) if kind not in _PASSING]
        """Positions of layers that compute; the others change a tensor's type, layout or device."""
        held = set(self.computing)
        self.put_in = [at for at in range(len(self.layers)) if at not in held]
        self.order = [*self.computing, *self.put_in]
        self.place = {at: place for place, at in enumerate(self.order)}
        self.has_shapes = any(layer.outputs for layer in self.layers)
        self.has_weights = any(layer.weights for layer in self.layers)
        self.has_digests = any(weight.digest for layer in self.layers for weight in layer.weights)
        self.has_windows = any(layer.attributes for layer in self.layers)
        self._keys: dict[tuple[Level, bool, bool], list[int]] = {}
        self._around: dict[tuple[Level, bool, bool], list[list[int]]] = {}

    @cached_property
    def flow(self) -> Flow:
        """Data flow between the layers."""
        return Flow(self.layers, self.kinds)

    @cached_property
    def nodes(self) -> NodeSets:
        """Layers by their ONNX nodes."""
        return layers_by_nodes(self.layers)

    @cached_property
    def owners(self) -> dict[str, int]:
        """Digest of a weight -> its only reader."""
        counts: dict[str, list[int]] = defaultdict(list)
        for at, layer in enumerate(self.layers):
            for digest in {weight.digest for weight in layer.weights if weight.digest and _identifies(weight.shape)}:
                counts[digest].append(at)
        return {digest: readers[0] for digest, readers in counts.items() if len(readers) == 1}

    @cached_property
    def weight_names(self) -> list[frozenset[str]]:
        """Names of each layer's weights, without constants that differ only in their names."""
        return [
            frozenset(weight.name for weight in layer.weights if weight.name and _identifies(weight.shape))
            for layer in self.layers
        ]

    def keys(self, level: Level, weights: bool, windows: bool) -> list[int]:
        """Return a number for each layer; layers that are equal at this level have equal numbers.

        `weights` and `windows` are False if another profile does not record them.
        """
        wanted = (level, weights, windows)
        if wanted not in self._keys:
            self._keys[wanted] = [
                self._intern((kind, *self._key(layer, level, weights, windows)))
                for kind, layer in zip(self.kinds, self.layers, strict=True)
            ]
        return self._keys[wanted]

    def _key(self, layer: Layer, level: Level, weights: bool, windows: bool) -> tuple[Hashable, ...]:
        if level is Level.TYPE:
            return ()
        # Ones are the default, which some exporters write and others omit.
        given = sorted(item for item in layer.attributes if set(item[1]) != {1}) if windows else []
        window = tuple(given)
        largest = max((prod(weight.shape) for weight in layer.weights), default=0) if weights else 0
        if level is Level.FREE:
            return window, largest, tuple(len(tensor.shape) for tensor in layer.outputs[:1])
        if level is Level.OUTPUT:
            return window, largest, tuple(tensor.shape[1:] for tensor in layer.outputs[:1])
        shapes = dims_of(layer.inputs), dims_of(layer.outputs)
        if level is Level.SHAPES or not weights:
            return window, largest, *shapes
        return window, tuple(sorted(weight.digest for weight in layer.weights)), *shapes

    def around(self, level: Level, weights: bool, windows: bool) -> list[list[int]]:
        """Return, for each radius from 0, a number for each layer; layers with equal surroundings have equal
        numbers."""
        wanted = (level, weights, windows)
        if wanted not in self._around:
            rounds = [self.keys(*wanted)]
            for _ in range(RADIUS):
                rounds.append(self._refined(rounds[-1]))
            self._around[wanted] = rounds
        return self._around[wanted]

    def commutes(self, at: int) -> bool:
        """Return whether the inputs of a layer may be swapped."""
        return self.kinds[at] in _COMMUTATIVE

    def _refined(self, before: list[int]) -> list[int]:
        known = [*before, _OUTSIDE]  # index -1, the outside, needs a number too
        reads, readers, intern = self.flow.reads, self.flow.readers, self._intern
        refined = list(before)
        for at in self.computing:
            produced = [known[other] for other in reads[at]]
            if self.kinds[at] in _COMMUTATIVE:
                produced.sort()
            used = sorted([(place, known[other]) for other, place in readers[at]])
            refined[at] = intern((before[at], tuple(produced), tuple(used)))
        return refined


class Flow:
    """Data flow between computing layers, through layers that the runtime inserted.

    Without names of tensors, the order of execution replaces the data flow.
    """

    def __init__(self, layers: Sequence[Layer], kinds: Sequence[str]) -> None:
        self.is_known = any(tensor.name for layer in layers for tensor in layer.outputs)
        self.reads: list[tuple[int, ...]] = [()] * len(layers)
        """For each layer, the producers of its inputs in order; -1 for inputs from outside."""
        self.readers: list[list[tuple[int, int]]] = [[] for _ in layers]
        """For each computing layer, its consumers with the position of the input, which is 0 if inputs may be
        swapped."""
        passing = [kind in _PASSING for kind in kinds]
        if self.is_known:
            self._follow_tensors(layers, passing)
        else:
            self._follow_order(passing)
        for at, makers in enumerate(self.reads):
            if passing[at]:
                continue
            commutes = kinds[at] in _COMMUTATIVE
            for place, maker in enumerate(makers):
                if maker >= 0:
                    self.readers[maker].append((at, 0 if commutes else place))

    def _follow_tensors(self, layers: Sequence[Layer], passing: Sequence[bool]) -> None:
        makers: dict[str, int] = {}
        weights = {weight.name for layer in layers for weight in layer.weights if weight.name}
        for at, layer in enumerate(layers):
            read = tuple([makers.get(tensor.name, _OUTSIDE) for tensor in layer.inputs if tensor.name not in weights])
            self.reads[at] = read
            source = (read[0] if read else _OUTSIDE) if passing[at] else at
            for tensor in layer.outputs:
                if tensor.name:
                    makers[tensor.name] = source

    def _follow_order(self, passing: Sequence[bool]) -> None:
        before = _OUTSIDE
        for at, is_passing in enumerate(passing):
            self.reads[at] = (before,)
            if not is_passing:
                before = at


def overlap(first: Iterable[int], second: Iterable[int]) -> int:
    """Return the size of the multiset intersection of two collections."""
    return sum((Counter(first) & Counter(second)).values())


def _identifies(shape: tuple[int, ...]) -> bool:
    """Return whether a shape identifies a network; a scalar, such as an epsilon, occurs in many networks."""
    return prod(shape) > 1
