"""Match the layers of two profiles: first by features, then by names where these agree with them.

Names alone are no proof: exporters number nodes, and an additional layer shifts all later numbers, so that equal names
denote different nodes. Weights, shapes and surroundings give certain pairs; these show, region by region, whether names
agree on both sides; only then do names decide the remaining layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ndld_flow.profiles.compare.match_evidence import (
    NAMELESS,
    RADIUS,
    Edge,
    Evidence,
    LayerFeatures,
    Level,
    NameTrust,
    agree,
    components,
    confidence_of,
    edges_by_nodes,
    method_of,
    names_of,
    overlap,
    shared_part,
    unique_pairs,
)
from ndld_flow.profiles.compare.sequence import align, longest_increasing
from ndld_flow.records.comparison import MatchMethod
from ndld_flow.records.profile import Layer

_NEARLY = 0.9
"""A finer level is used if it pairs at least this part of the layers that a coarser one pairs."""
_AGREE = 0.5
"""Names decide if at least this share of the surrounding certain pairs agree in their names."""
_OF_SEVERAL = 0.97
"""Confidence that the further layers of a group belong to it, given the match of its first."""
_OWN_NAME, _OWN_NAME_BUT_SHAPE = 0.97, 0.8
_SUPPORTED = 0.5
_WEIGHTS_AGREE = 0.9
"""Names of weights decide only if at least this share of certain pairs agree with them."""
_NEIGHBOURS = 3
"""Number of layers before and after a pair whose partners support it."""


_DOUBTFUL: tuple[Evidence, ...] = ("surroundings", "surroundings in order", "flow", "in order")
_Supports = Mapping[int, float]


class Link(NamedTuple):
    """Layers of one profile that do the same work as layers of the other."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    method: MatchMethod
    confidence: float


Known = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Layers of two profiles that are already matched."""


def match_pair(ours: LayerFeatures, theirs: LayerFeatures, known: Known = ()) -> list[Link]:
    """Return new links between the layers of two profiles; each layer is in at most one."""
    return _PairMatching(ours, theirs, known).run()


class _PairMatching:
    """The state of matching two profiles."""

    def __init__(self, ours: LayerFeatures, theirs: LayerFeatures, known: Known) -> None:
        self.sides = (ours, theirs)
        self.partner: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.evidence: dict[int, Evidence] = {}
        self.edges: list[Edge] = []
        """Links between layers of groups of several, in addition to `partner`."""
        self.held: tuple[set[int], set[int]] = (set(), set())
        """Layers of either side that have a partner or are in a group."""
        self.same_model = not ours.models.isdisjoint(theirs.models)
        self.have_shapes = all(side.has_shapes for side in self.sides)
        self.have_weights = all(side.has_weights for side in self.sides)
        self.have_windows = all(side.has_windows for side in self.sides)
        self.by_flow = all(side.flow.is_known for side in self.sides)
        self.level = self._choose_level()
        self.known = len(known)
        for mine, yours in known:
            self.partner[mine[0]], self.back[yours[0]] = yours[0], mine[0]
            self.held[0].update(mine)
            self.held[1].update(yours)

    def run(self) -> list[Link]:
        """Run all stages and return the links."""
        if self.same_model:
            self._match_by_names()
        self._match_by_weights()
        self._match_by_surroundings()
        self._match_along_flow()
        self._match_in_order(self.level, only_certain=True)
        if not self.same_model:
            self._drop_unsupported()
            self._match_by_names()
        self._match_remaining()
        self._match_inserted()
        self._match_anywhere()
        if not self.same_model:
            self._mark_ambiguous()
        return self._links()

    # Equal features

    def _keys(self, level: Level) -> list[list[int]]:
        return [side.keys(level, self.have_weights, self.have_windows) for side in self.sides]

    def _choose_level(self) -> Level:
        """Return the finest level that pairs nearly as many layers as any coarser one."""
        if not self.have_shapes:
            return Level.TYPE
        finest = Level.CONTENTS if all(side.has_digests for side in self.sides) else Level.SHAPES
        chosen, most = Level.FREE, 0
        for level in (Level.FREE, Level.OUTPUT, Level.SHAPES, Level.CONTENTS):
            if level < finest:
                break
            keys = self._keys(level)
            alike = overlap(*([keys[n][at] for at in side.computing] for n, side in enumerate(self.sides)))
            most = max(most, alike)
            if alike >= _NEARLY * most:
                chosen = level
        return chosen

    def _pair(self, our_at: int, their_at: int, evidence: Evidence) -> bool:
        if our_at in self.held[0] or their_at in self.held[1]:
            return False
        self.partner[our_at], self.back[their_at], self.evidence[our_at] = their_at, our_at, evidence
        self._hold(our_at, their_at)
        return True

    def _join(self, edges: Iterable[Edge], evidence: Evidence) -> None:
        """Put several layers into groups; the first of each aligns the group."""
        for our_at, their_at in sorted(edges):
            if not self._pair(our_at, their_at, evidence) and self._may_grow(our_at, their_at):
                self.edges.append((our_at, their_at))
                self._hold(our_at, their_at)

    def _may_grow(self, our_at: int, their_at: int) -> bool:
        """Return whether a free layer may join a pair: the halves of a split or fused layer run next to each other."""
        if self.known and our_at not in self.evidence and self.back.get(their_at) not in self.evidence:
            return False
        if self.same_model:
            return True
        if our_at in self.held[0]:
            return (
                their_at not in self.held[1]
                and our_at in self.partner
                and self._is_near(1, their_at, self.partner[our_at])
            )
        return their_at in self.back and self._is_near(0, our_at, self.back[their_at])

    def _is_near(self, side: int, first: int, second: int) -> bool:
        place = self.sides[side].place
        return abs(place[first] - place[second]) <= _NEIGHBOURS

    def _hold(self, our_at: int, their_at: int) -> None:
        self.held[0].add(our_at)
        self.held[1].add(their_at)

    # Without names

    def _match_by_weights(self) -> None:
        """Join layers with equal weights that are unique in their profiles."""
        ours, theirs = (side.owners for side in self.sides)
        edges = {(ours[digest], theirs[digest]) for digest in ours.keys() & theirs.keys()}
        free = [edge for edge in edges if edge[0] not in self.held[0] and edge[1] not in self.held[1]]
        single = unique_pairs(free)
        for our_at, their_at in single.items():
            self._pair(our_at, their_at, "weights")
        self._join((edge for edge in free if edge[0] not in single), "weights")

    def _match_by_surroundings(self) -> None:
        """Pair layers with equal surroundings that are unique on both sides."""
        evidence: Evidence = "surroundings" if self.by_flow else "surroundings in order"
        rounds = [side.around(self.level, self.have_weights, self.have_windows) for side in self.sides]
        for radius in range(RADIUS, 0, -1):
            only = [_alone(rounds[n][radius], side.computing) for n, side in enumerate(self.sides)]
            for key in only[0].keys() & only[1].keys():
                self._pair(only[0][key], only[1][key], evidence)

    def _match_along_flow(self) -> None:
        """Extend pairs to their producers and readers where keys are unambiguous.

        If both directions reach a layer and disagree, a layer was inserted between equal ones; it is left unmatched.
        """
        if not self.by_flow:
            return
        keys = self._keys(self.level)
        forward, backward = (_Walk(self, keys, step).run() for step in (_read_by, _makers_of))
        agreed = {
            our_at: their_at for our_at, their_at in forward.items() if backward.get(our_at, their_at) == their_at
        }
        agreed |= {
            our_at: their_at for our_at, their_at in backward.items() if forward.get(our_at, their_at) == their_at
        }
        for our_at, their_at in unique_pairs(agreed.items()).items():
            self._pair(our_at, their_at, "flow")

    def _drop_unsupported(self) -> None:
        """Drop accidental alignments: pairs whose neighbours are not neighbours on the other side."""
        support = self._supports()
        aligned = [our_at for our_at, evidence in self.evidence.items() if evidence == "in order"]
        for our_at in [our_at for our_at in aligned if support[our_at] < _SUPPORTED]:
            their_at = self.partner.pop(our_at)
            del self.back[their_at], self.evidence[our_at]
            self.held[0].discard(our_at)
            self.held[1].discard(their_at)

    def _match_in_order(self, level: Level, *, only_certain: bool = False) -> None:
        """Align the remaining layers between pairs that are in the same order in both profiles.

        A pair is certain if alignment from the front and from the back agree on it.
        """
        keys = self._keys(level)
        for ours, theirs in self._gaps([side.computing for side in self.sides]):
            first, second = ([keys[n][at] for at in gap] for n, gap in enumerate((ours, theirs)))
            aligned = align(first, second)
            again = align(first[::-1], second[::-1])
            certain = set(aligned) & {(len(first) - 1 - a, len(second) - 1 - b) for a, b in again}
            for a, b in aligned:
                if (a, b) in certain:
                    self._pair(ours[a], theirs[b], "in order")
                elif not only_certain:
                    self._pair(ours[a], theirs[b], "in order, ambiguous")

    def _match_remaining(self) -> None:
        """Align the remaining layers with increasingly coarse levels."""
        self._match_in_order(self.level)
        for level in (Level.SHAPES, Level.OUTPUT):
            if level > self.level and self.have_shapes:
                self._match_in_order(level)

    def _gaps(self, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the free layers of both sides between neighbouring pairs that are in order."""
        ours, theirs = sequences
        place = {at: number for number, at in enumerate(theirs)}
        anchors = [
            (number, place[their_at]) for number, at in enumerate(ours) if (their_at := self.partner.get(at)) in place
        ]
        kept = [anchors[number] for number in longest_increasing([their_at for _, their_at in anchors])]
        for (start, their_start), (end, their_end) in pairwise([(-1, -1), *kept, (len(ours), len(theirs))]):
            if end - start > 1 and their_end - their_start > 1:
                mine = [at for at in ours[start + 1 : end] if at not in self.held[0]]
                yours = [at for at in theirs[their_start + 1 : their_end] if at not in self.held[1]]
                if mine and yours:
                    yield mine, yours

    # With names

    def _match_by_names(self) -> None:
        """Join layers by their nodes and their own names, where these agree with surrounding certain pairs."""
        self.by_nodes = all(side.nodes for side in self.sides)
        self.names = [names_of(side.layers, self.by_nodes) for side in self.sides]
        self.all_names = [frozenset[str]().union(*names) for names in self.names]
        self.trust = NameTrust(self.names[0], self.names[1], self.partner)
        self._match_by_weight_names()
        if self.by_nodes:
            edges = edges_by_nodes(self.sides[0].nodes, self.sides[1].nodes)
            self._join([edge for edge in edges if self._may_join(*edge)], "nodes")
        named = [_by_own_name(side, self.held[n]) for n, side in enumerate(self.sides)]
        for key in named[0].keys() & named[1].keys():
            our_at, their_at = named[0][key], named[1][key]
            if self._may_join(our_at, their_at) and self._may_be_equal(our_at, their_at):
                self._pair(our_at, their_at, "name")

    def _match_by_weight_names(self) -> None:
        """Pair layers whose weights have the same name, where these names agree with certain pairs."""
        names = [side.weight_names for side in self.sides]
        trust = NameTrust(names[0], names[1], self.partner)
        if trust.share is None or trust.share < _WEIGHTS_AGREE:
            return
        owners = [_alone_by_name(side) for side in names]
        edges = {(owners[0][name], owners[1][name]) for name in owners[0].keys() & owners[1].keys()}
        for our_at, their_at in unique_pairs(edges).items():
            if not trust.forbids(our_at, their_at) and (trust.around(our_at, their_at) or 0) >= _AGREE:
                self._pair(our_at, their_at, "weight names")

    def _may_join(self, our_at: int, their_at: int) -> bool:
        if self.same_model:
            return True
        if self.trust.forbids(our_at, their_at):
            return False
        around = self.trust.around(our_at, their_at)
        return around is None or around >= _AGREE

    def _may_be_equal(self, our_at: int, their_at: int) -> bool:
        """Return whether the shapes of two layers with one name are compatible, if they are comparable."""
        if self.same_model:
            return True
        keys = self._keys(max(self.level, Level.OUTPUT))
        return keys[0][our_at] == keys[1][their_at]

    # What is left

    def _match_inserted(self) -> None:
        """Match layers inserted by runtimes: by their producers, then in order between matched layers."""
        for looks in (lambda layer: tuple((tensor.dtype, tensor.format) for tensor in layer.outputs), lambda layer: ()):
            candidates = [self._put_in(n, looks) for n in (0, 1)]
            for key in candidates[0].keys() & candidates[1].keys():
                self._pair(candidates[0][key], candidates[1][key], "reads the same")
        keys = self._keys(Level.OUTPUT if self.have_shapes else Level.TYPE)
        for ours, theirs in self._gaps([range(len(side.layers)) for side in self.sides]):
            for a, b in align([keys[0][at] for at in ours], [keys[1][at] for at in theirs]):
                self._pair(ours[a], theirs[b], "put in, in order")

    def _put_in(self, side: int, looks: Callable[[Layer], Hashable]) -> dict[Hashable, int]:
        """Return the layers inserted by the runtime by their producers and appearance, if unique."""
        features = self.sides[side]
        reads = features.flow.reads
        candidates: dict[Hashable, list[int]] = defaultdict(list)
        for at in features.put_in:
            if at in self.held[side] or not reads[at] or (reads[at][0] >= 0 and reads[at][0] not in self.held[side]):
                continue
            maker = reads[at][0]
            ours = maker if side == 0 or maker < 0 else self.back.get(maker, -2)
            candidates[features.kinds[at], ours, looks(features.layers[at])].append(at)
        return {key: layers[0] for key, layers in candidates.items() if len(layers) == 1}

    def _match_anywhere(self) -> None:
        """Pair the remaining layers by type and shapes only, in any order."""
        left: list[dict[Hashable, list[int]]] = [defaultdict(list), defaultdict(list)]
        for n, side in enumerate(self.sides):
            for at, layer in enumerate(side.layers):
                if at not in self.held[n] and layer.outputs and layer.inputs:
                    left[n][(layer.type, layer.inputs[0].shape[1:], layer.outputs[0].shape[1:])].append(at)
        for key in left[0].keys() & left[1].keys():
            for our_at, their_at in zip(left[0][key], left[1][key], strict=False):
                self._pair(our_at, their_at, "anywhere")

    def _mark_ambiguous(self) -> None:
        """Mark pairs as ambiguous that depend on the direction of alignment: one of several equal layers was inserted
        or removed.
        """
        keys = self._keys(self.level)
        first, second = ([keys[n][at] for at in side.computing] for n, side in enumerate(self.sides))
        if first == second:
            return
        forward = set(align(first, second))
        backward = {(len(first) - 1 - a, len(second) - 1 - b) for a, b in align(first[::-1], second[::-1])}
        differing = forward ^ backward
        counts = Counter(a for a, _ in differing), Counter(b for _, b in differing)
        for a, b in differing:
            our_at = self.sides[0].computing[a]
            if max(counts[0][a], counts[1][b]) > 1 and self.evidence.get(our_at) in _DOUBTFUL:
                self.evidence[our_at] = "in order, ambiguous"

    # Results

    def _links(self) -> list[Link]:
        similarity, supports = self._similarity(), self._supports()
        of_several = self._in_groups()
        grouped = components([*((our_at, self.partner[our_at]) for our_at in of_several), *self.edges])
        single = (([our_at], [self.partner[our_at]]) for our_at in self.evidence if our_at not in of_several)
        return [self._link(mine, yours, similarity, supports) for mine, yours in (*single, *grouped)]

    def _in_groups(self) -> set[int]:
        """Return our layers with a partner that are in groups of more than two."""
        ends = {our_at for our_at, _ in self.edges} | {
            self.back[their_at] for _, their_at in self.edges if their_at in self.back
        }
        return ends & self.evidence.keys()

    def _link(self, mine: Sequence[int], yours: Sequence[int], similarity: float, supports: _Supports) -> Link:
        first = next(at for at in mine if at in self.partner)
        evidence, names = self.evidence[first], self._names_agree(mine, yours)
        support = supports[first]
        if self.same_model and evidence in ("nodes", "name"):
            confidence = self._shared_part(mine, yours) if evidence == "nodes" else self._confidence_of_name(first)
        else:
            confidence = confidence_of(evidence, support, names, similarity)
            if len(mine) + len(yours) > 2:
                confidence *= _OF_SEVERAL * (self._shared_part(mine, yours) if evidence == "nodes" else 1.0)
        return Link(tuple(mine), tuple(yours), self._method(evidence, names), confidence)

    def _method(self, evidence: Evidence, names_agree: bool | None) -> MatchMethod:
        """Return the displayed method: names first, if they confirm the evidence."""
        if names_agree and evidence != "weights":
            return "onnx nodes" if self.by_nodes else "name and type"
        method = method_of(evidence)
        return "type and dims in order" if method == "surroundings" and not self.by_flow else method

    def _confidence_of_name(self, our_at: int) -> float:
        """Return the confidence of a layer's own name in profiles of one model."""
        keys = self._keys(Level.OUTPUT)
        return _OWN_NAME if keys[0][our_at] == keys[1][self.partner[our_at]] else _OWN_NAME_BUT_SHAPE

    def _shared_part(self, mine: Sequence[int], yours: Sequence[int]) -> float:
        return shared_part((self.sides[0].layers[at] for at in mine), (self.sides[1].layers[at] for at in yours))

    def _names_agree(self, mine: Sequence[int], yours: Sequence[int]) -> bool | None:
        """Return whether names agree; None if neither side has the other's names."""
        ours, theirs = ([self.names[n][at] for at in some] for n, some in enumerate((mine, yours)))
        if any(agree(our_at, their_at) for our_at in ours for their_at in theirs):
            return True
        is_known = any(not names.isdisjoint(self.all_names[1]) for names in ours)
        return False if is_known or any(not names.isdisjoint(self.all_names[0]) for names in theirs) else None

    def _supports(self) -> dict[int, float]:
        """Return for each matched layer the share of its neighbours whose partners are neighbours too."""
        place, their_place = (side.place for side in self.sides)
        shifts: list[int | None] = [None] * len(place)
        for our_at, their_at in self.partner.items():
            shifts[place[our_at]] = their_place[their_at] - place[our_at]
        supports: dict[int, float] = {}
        for our_at in self.partner:
            here = place[our_at]
            shift = shifts[here] or 0
            near = shifts[max(0, here - _NEIGHBOURS) : here] + shifts[here + 1 : here + 1 + _NEIGHBOURS]
            good = sum([other is not None and -1 <= other - shift <= 1 for other in near])
            supports[our_at] = good / len(near) if near else 1.0
        return supports

    def _similarity(self) -> float:
        """Return the share of the smaller side's layers that are matched with certainty and without names."""
        if self.same_model:
            return 1.0
        matched = self.known + sum(evidence in NAMELESS for evidence in self.evidence.values())
        return matched / (min(len(side.computing) for side in self.sides) or 1)


_Step = Callable[[LayerFeatures, Sequence[int], int], Iterable[tuple[Hashable, int]]]


def _read_by(side: LayerFeatures, keys: Sequence[int], at: int) -> Iterator[tuple[Hashable, int]]:
    """Yield the readers of a layer, by the position of the input and their key."""
    return (((place, keys[reader]), reader) for reader, place in side.flow.readers[at])


def _makers_of(side: LayerFeatures, keys: Sequence[int], at: int) -> Iterator[tuple[Hashable, int]]:
    """Yield the producers of a layer's inputs, by the position of the input and their key."""
    commutes = side.commutes(at)
    reads = enumerate(side.flow.reads[at])
    return (((0 if commutes else place, keys[maker]), maker) for place, maker in reads if maker >= 0)


class _Walk:
    """A walk along the data flow, from all pairs at once, in one direction."""

    def __init__(self, known: _PairMatching, keys: Sequence[Sequence[int]], step: _Step) -> None:
        self._known, self._keys, self._step = known, keys, step
        self._found: dict[int, int] = {}
        self._taken: set[int] = set()

    def run(self) -> dict[int, int]:
        """Return the pairs that the walk reaches."""
        waiting = list(self._known.partner.items())
        while waiting:
            our_at, their_at = waiting.pop()
            ours, theirs = (self._next(side, at) for side, at in ((0, our_at), (1, their_at)))
            for key in ours.keys() & theirs.keys():
                pair = ours[key], theirs[key]
                if pair[0] not in self._found and pair[1] not in self._taken:
                    self._found[pair[0]] = pair[1]
                    self._taken.add(pair[1])
                    waiting.append(pair)
        return self._found

    def _next(self, side: int, at: int) -> dict[Hashable, int]:
        """Return the free neighbours of a layer with a unique key."""
        steps = [*self._step(self._known.sides[side], self._keys[side], at)]
        counts = Counter(key for key, _ in steps)
        return {key: their_at for key, their_at in steps if counts[key] == 1 and their_at not in self._known.held[side]}


def _alone_by_name(names: Sequence[Iterable[str]]) -> dict[str, int]:
    """Return name -> the only layer that has it."""
    holders: dict[str, list[int]] = defaultdict(list)
    for at, own in enumerate(names):
        for name in own:
            holders[name].append(at)
    return {name: layers[0] for name, layers in holders.items() if len(layers) == 1}


def _alone(keys: Sequence[int], positions: Iterable[int]) -> dict[int, int]:
    """Return key -> the only one of these positions that has it."""
    counts = Counter(keys[at] for at in positions)
    return {keys[at]: at for at in positions if counts[keys[at]] == 1}


def _by_own_name(side: LayerFeatures, held: set[int]) -> dict[Hashable, int]:
    """Return the free computing layers by name, type and occurrence."""
    seen: Counter[tuple[str, str]] = Counter()
    named: dict[Hashable, int] = {}
    for at in side.computing:
        name = side.layers[at].name
        key = (name, side.kinds[at])
        seen[key] += 1
        if name and at not in held:
            named[key, seen[key]] = at
    return named
