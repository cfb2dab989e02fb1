"""Features of a profile's layers that do not depend on names: kinds, shapes, weights, surroundings.

Each feature is interned as a number, so that features of several profiles compare as integers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from math import prod

from ndld_flow.profiles.compare.match_evidence import NodeSets, dims_of, layers_by_nodes
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.profile import Layer, Profile

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
            for digest in {weight.digest for weight in layer.weights if weight.digest and _is_telling(weight.shape)}:
                counts[digest].append(at)
        return {digest: found[0] for digest, found in counts.items() if len(found) == 1}

    @cached_property
    def weight_names(self) -> list[frozenset[str]]:
        """Names of each layer's weights, without constants that differ only in their names."""
        return [
            frozenset(weight.name for weight in layer.weights if weight.name and _is_telling(weight.shape))
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
            made = [known[other] for other in reads[at]]
            if self.kinds[at] in _COMMUTATIVE:
                made.sort()
            used = sorted([(place, known[other]) for other, place in readers[at]])
            refined[at] = intern((before[at], tuple(made), tuple(used)))
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
        """For each computing layer, its readers with the position of the input, which is 0 if inputs may be swapped."""
        passing = [kind in _PASSING for kind in kinds]
        if self.is_known:
            self._follow_tensors(layers, passing)
        else:
            self._follow_order(passing)
        for at, made in enumerate(self.reads):
            if passing[at]:
                continue
            commutes = kinds[at] in _COMMUTATIVE
            for place, maker in enumerate(made):
                if maker >= 0:
                    self.readers[maker].append((at, 0 if commutes else place))

    def _follow_tensors(self, layers: Sequence[Layer], passing: Sequence[bool]) -> None:
        makers: dict[str, int] = {}
        weights = {weight.name for layer in layers for weight in layer.weights if weight.name}
        for at, layer in enumerate(layers):
            made = tuple([makers.get(tensor.name, _OUTSIDE) for tensor in layer.inputs if tensor.name not in weights])
            self.reads[at] = made
            source = (made[0] if made else _OUTSIDE) if passing[at] else at
            for tensor in layer.outputs:
                if tensor.name:
                    makers[tensor.name] = source

    def _follow_order(self, passing: Sequence[bool]) -> None:
        before = _OUTSIDE
        for at, is_passing in enumerate(passing):
            self.reads[at] = (before,)
            if not is_passing:
                before = at


def overlap(one: Iterable[int], other: Iterable[int]) -> int:
    """Return the size of the multiset intersection of two collections."""
    return sum((Counter(one) & Counter(other)).values())


def _is_telling(shape: tuple[int, ...]) -> bool:
    """Return whether a shape identifies a network; a scalar, such as an epsilon, occurs in many networks."""
    return prod(shape) > 1
