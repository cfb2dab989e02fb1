"""Features of one profile's layers that do not depend on what anything is called: shapes, weights, surroundings.

Each feature is interned to a number, so that features of several profiles compare as integers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from enum import IntEnum
from functools import cached_property
from math import prod

from ndld_flow.profiles.compare.layer_groups import NodeSets, dims_of, layers_by_nodes
from ndld_flow.profiles.compare.layer_types import kind_of
from ndld_flow.records.profile import Layer, Profile

RADIUS = 3
"""Steps of the data flow around a layer that identify it. Near an edit a smaller circle is still the same."""
_OUTSIDE = -1
_PASSING = ("reformat", "quantize", "dequantize", "cast", "copy", "sync")
"""Kinds of layers that hand on what they read: one model has them between two layers, its re-export has not."""
_COMMUTATIVE = ("add", "mul", "sum", "max", "min", "mean", "and", "or", "equal", "qlinearadd", "qlinearmul")


class Level(IntEnum):
    """How much of a layer has to be equal, from all that is known to the type alone."""

    CONTENTS = 0
    """Shapes, window and the weights' values."""
    SHAPES = 1
    """Shapes of all inputs and outputs, window, sizes of weights."""
    OUTPUT = 2
    """Shape of the first output without the batch, window, size of the largest weight."""
    FREE = 3
    """Window, size of the largest weight, rank: the same network at other shapes."""
    TYPE = 4
    """Type alone: what is left without layer information."""


class Interner:
    """Numbers for values: equal values have one number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


class LayerFeatures:
    """The layers of one profile, as far as they can be recognised without their names."""

    def __init__(self, profile: Profile, intern: Interner, models: frozenset[str] = frozenset()) -> None:
        self.models = models
        """Digests of the models that such layers were measured of."""
        self.layers = profile.layers
        self._intern = intern
        self.kinds = [kind_of(layer) for layer in self.layers]
        self.computing = [at for at, kind in enumerate(self.kinds) if kind not in _PASSING]
        """Positions of layers that compute; the others change a tensor's type, layout or place."""
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
        """Which layers read from which."""
        return Flow(self.layers, self.kinds)

    @cached_property
    def nodes(self) -> NodeSets:
        """Layers by the ONNX nodes they came from."""
        return layers_by_nodes(self.layers)

    @cached_property
    def owners(self) -> dict[str, int]:
        """Digest of a weight -> the only layer that reads it."""
        counts: dict[str, list[int]] = defaultdict(list)
        for at, layer in enumerate(self.layers):
            for digest in {weight.digest for weight in layer.weights if weight.digest and _is_telling(weight.shape)}:
                counts[digest].append(at)
        return {digest: found[0] for digest, found in counts.items() if len(found) == 1}

    @cached_property
    def weight_names(self) -> list[frozenset[str]]:
        """Names of each layer's weights, without those of constants that are told apart by nothing else."""
        return [
            frozenset(weight.name for weight in layer.weights if weight.name and _is_telling(weight.shape))
            for layer in self.layers
        ]

    def keys(self, level: Level, weights: bool, windows: bool) -> list[int]:
        """Return a number for each layer, equal for layers that are equal at this level.

        `weights` and `windows` are False where another profile has not recorded them.
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
        # Ones are the default, which some exporters write and others leave out.
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
        """Return, for each radius from 0, a number for each layer that is equal where all around it is equal too."""
        wanted = (level, weights, windows)
        if wanted not in self._around:
            rounds = [self.keys(*wanted)]
            for _ in range(RADIUS):
                rounds.append(self._refined(rounds[-1]))
            self._around[wanted] = rounds
        return self._around[wanted]

    def commutes(self, at: int) -> bool:
        """Return whether the inputs of a layer may be exchanged."""
        return self.kinds[at] in _COMMUTATIVE

    def _refined(self, before: list[int]) -> list[int]:
        known = [*before, _OUTSIDE]  # so that -1, which is outside, has a number too
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
    """Which computing layers read what others made, through whatever the runtime put in between.

    Without names of tensors, the order of execution takes the place of the data flow.
    """

    def __init__(self, layers: Sequence[Layer], kinds: Sequence[str]) -> None:
        self.is_known = any(tensor.name for layer in layers for tensor in layer.outputs)
        self.reads: list[tuple[int, ...]] = [()] * len(layers)
        """For each layer, the makers of its inputs in their order; -1 for what comes from outside."""
        self.readers: list[list[tuple[int, int]]] = [[] for _ in layers]
        """For each computing layer, those that read what it made, each with the place of the input, which is 0 where
        inputs may be exchanged."""
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
    """Return how many equal pairs two collections can be put into."""
    return sum((Counter(one) & Counter(other)).values())


def _is_telling(shape: tuple[int, ...]) -> bool:
    """A single number, such as an epsilon, is the same in many networks."""
    return prod(shape) > 1
