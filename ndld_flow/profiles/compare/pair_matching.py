"""Match the layers of two profiles: an alignment by their looks, weights and data flow, then names where these agree.

A layer stays alone unless its pair is more probable than every other explanation together: a wrong pair shows a
difference of times that does not exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndld_flow.profiles.compare.pair_evidence import (
    NEVER,
    LayerClass,
    LayerFeatures,
    Scores,
    score_looks,
    score_names,
    score_nodes,
    score_weights,
)
from ndld_flow.records.comparison import MatchMethod

Floats = NDArray[np.float64]

_NEAREST = 12
"""Number of candidate positions tried per item, the nearest ones. A model of 5,000 layers repeats few kinds, so that
trying all would be millions.
"""
_LONG, _NEAREST_IN_LONG = 1000, 6
"""In sequences of this length, half as many positions are tried."""


def align(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions with equal items, in order in both.

    The number of pairs is maximal if an item has at most 12 equals in the other sequence; otherwise only the 12 nearest
    positions are considered, 6 in long sequences. Hunt and Szymanski, 1977, A fast algorithm for computing longest
    common subsequences.
    """
    shorter = min(len(first), len(second))
    head = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if first[-1 - i] != second[-1 - i]), rest)
    pairs = [(position, position) for position in range(head)]
    middle = _longest(first[head : len(first) - tail], second[head : len(second) - tail])
    pairs += [(a + head, b + head) for a, b in middle]
    pairs += [(len(first) - back, len(second) - back) for back in range(tail, 0, -1)]
    return pairs


def _longest(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for position, item in enumerate(second):
        places[item].append(position)
    slope = len(second) / len(first) if first else 0.0
    nearest = _NEAREST if len(first) < _LONG else _NEAREST_IN_LONG
    return _chains(
        # Later positions first, so that an item is not chained with itself.
        (position, place)
        for position, item in enumerate(first)
        if item in places
        for place in reversed(_near(places[item], int(position * slope), nearest))
    )


def _near(places: list[int], wanted: int, nearest: int) -> list[int]:
    if len(places) <= nearest:
        return places
    start = bisect_left(places, wanted) - nearest // 2
    start = max(0, min(start, len(places) - nearest))
    return places[start : start + nearest]


def _chains(pairs: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest chain in which the second numbers increase; the first numbers are non-decreasing.

    It keeps the last pair of the best chain of each length (patience sorting).
    """
    ends: list[int] = []
    links: list[tuple[int, int, int]] = []
    last: list[int] = []
    for position, place in pairs:
        length = bisect_left(ends, place)
        before = last[length - 1] if length else -1
        links.append((position, place, before))
        if length == len(ends):
            ends.append(place)
            last.append(len(links) - 1)
        else:
            ends[length] = place
            last[length] = len(links) - 1
    chain: list[tuple[int, int]] = []
    link = last[-1] if last else -1
    while link >= 0:
        position, place, link = links[link]
        chain.append((position, place))
    return chain[::-1]


def posterior(scores: Floats, alone: tuple[Floats, Floats]) -> Floats:
    """Return P(i and j are aligned), of shape (n, m), by the forward-backward algorithm for pair hidden Markov models.

    `scores` are log odds of each pair, of shape (n, m); `alone` are those of leaving an item of either sequence without
    a partner, of shapes (n,) and (m,). Durbin et al., 1998, Biological Sequence Analysis, section 4.4.
    """
    both = np.stack([scores, scores[::-1, ::-1]])
    gaps, their_gaps = (np.stack([each, each[::-1]]) for each in alone)
    forward, backward = _sum_alignments(both, gaps, their_gaps)
    logs = forward[:-1, :-1] + scores + backward[::-1, ::-1][1:, 1:] - forward[-1, -1]
    result: Floats = np.exp(np.minimum(logs, 0))
    return result


def _sum_alignments(scores: Floats, gaps: Floats, their_gaps: Floats) -> Floats:
    """Return the log weight of all alignments of the first i and j items, of shape (directions, n + 1, m + 1).

    Cells of one antidiagonal depend on the two before only, and are computed together. In the flat array they are `m`
    apart.
    """
    directions, n, m = scores.shape
    weights = np.full((directions, n + 1, m + 1), -1e9)
    weights[:, 0, 0] = 0
    weights[:, 1:, 0], weights[:, 0, 1:] = np.cumsum(gaps, 1), np.cumsum(their_gaps, 1)
    padded = np.zeros_like(weights)
    padded[:, 1:, 1:] = scores
    cells, paired = (each.reshape(directions, -1) for each in (weights, padded))
    for diagonal in range(2, n + m + 1):
        first, last = max(1, diagonal - m), min(n, diagonal - 1)
        here = slice(first * m + diagonal, last * m + diagonal + 1, m)
        above = slice(here.start - m - 1, here.stop - m - 1, m)
        left = slice(here.start - 1, here.stop - 1, m)
        corner = slice(here.start - m - 2, here.stop - m - 2, m)
        ours = cells[:, above] + gaps[:, first - 1 : last]
        theirs = cells[:, left] + their_gaps[:, diagonal - last - 1 : diagonal - first][:, ::-1]
        cells[:, here] = np.logaddexp(cells[:, corner] + paired[:, here], np.logaddexp(ours, theirs))
    return weights


_ALONE: Mapping[LayerClass, float] = {
    "compute": -3.0,
    "reduce": -1.5,
    "pointwise": -1.0,
    "layout": -0.7,
    "passing": -0.2,
}
"""Nats of leaving a layer without a partner."""
_FLOW, _MOST_FLOW, _ROUNDS = 1.5, 2.0, 2
"""Nats for each neighbour in the data flow that is matched too, how many count, and how often that is repeated."""
_ACCEPTED, _ACCEPTED_BY_STRUCTURE = 0.6, 0.8
"""Least probability of a pair, and of one without nodes, weights and names."""
_TELLING = 1.0
"""Least nats by which names count as evidence of a pair."""
_TRUSTED_WORDS, _TRUSTED_NUMBERS = 0.8, 0.9
"""Least share of pairs by names alone that everything else does not contradict, or that it finds too for numbers."""
_MOST_FOR_NUMBERS = 2.0
"""Nats for counted names: they decide only what the rest leaves open, as one more layer shifts those of its type."""
_FITS = -1.5
_CLEAR, _AHEAD = 5.5, 2.0
"""Nats of a pair out of order, and by how many no other pair of its layers comes near."""
_NEAR = 3
"""Matched layers between the places of two layers that swapped."""
_SWAPPED_LOOKS = 1.5
_MOST_CERTAIN: Mapping[MatchMethod, float] = {
    "nodes": 1.0,
    "weights": 1.0,
    "names": 0.995,
    "structure": 0.99,
    "out of order": 0.96,
    "swapped": 0.8,
}
"""Greatest confidence by method: an upper bound where the alignment is surer than such pairs deserve.
`bench_matching` prints how many pairs of each confidence are right.
"""
_BY_LOOKS: Sequence[MatchMethod] = ("structure", "out of order", "swapped")
_FEW = 4
"""Layers that may run one node; a node in more is a constant or a size, and shows nothing."""
_MOST_CELLS = 4_000_000
"""Pairs of layers up to which everything is compared with everything: 2,000 layers each, a few seconds."""


class Link(NamedTuple):
    """Layers of one profile that do the same work as layers of the other."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    method: MatchMethod
    confidence: float


def match_pair(first: LayerFeatures, second: LayerFeatures) -> list[Link]:
    """Return the links between the layers of two profiles; each layer is in at most one.

    Profiles of more than two thousand layers each are cut where layers are certain to be the same.
    """
    if not len(first) or not len(second):
        return []
    if len(first) * len(second) > _MOST_CELLS:
        return [link for pieces in _cut(first, second) for link in _match_pieces(first, second, *pieces)]
    return _PairMatching(first, second).run()


def _match_pieces(
    first: LayerFeatures, second: LayerFeatures, ours: Sequence[int], theirs: Sequence[int]
) -> Iterator[Link]:
    pieces = [
        LayerFeatures([side.layers[at] for at in places], side.models)
        for side, places in ((first, ours), (second, theirs))
    ]
    for link in _PairMatching(*pieces).run():
        mine, yours = tuple(ours[at] for at in link.ours), tuple(theirs[at] for at in link.theirs)
        yield Link(mine, yours, link.method, link.confidence)


def _cut(first: LayerFeatures, second: LayerFeatures) -> Iterator[tuple[list[int], list[int]]]:
    """Yield pieces of two long profiles that correspond, each small enough to be matched; others stay unmatched.

    The longest common subsequence of looks gives places at which both can be cut.
    """
    size = int(_MOST_CELLS**0.5) // 2
    places = first.order, second.order
    looks = [[side.looks(at) for at in order] for side, order in zip((first, second), places, strict=True)]
    start = (0, 0)
    ends = [*align(*looks), (len(first), len(second))]
    for number, end in enumerate(ends):
        is_last = number + 1 == len(ends)
        if not is_last and end[0] - start[0] < size and end[1] - start[1] < size:
            continue
        mine, yours = (sorted(order[a:b]) for order, a, b in zip(places, start, end, strict=True))
        if 0 < len(mine) * len(yours) <= _MOST_CELLS:
            yield mine, yours
        start = end


class _PairMatching:
    """The state of matching two profiles."""

    def __init__(self, first: LayerFeatures, second: LayerFeatures) -> None:
        self.sides = (first, second)
        self.by_flow = first.knows_flow and second.knows_flow
        self.of_one_model = not first.models.isdisjoint(second.models)
        self.nodes, self.weights = score_nodes(first, second), score_weights(first, second)
        self.scores = score_looks(first, second)
        self.possible = self.scores > NEVER / 2
        self.scores[self.possible] += np.where(self.nodes, self.nodes, self.weights)[self.possible]
        self.names = np.zeros_like(self.scores)
        self.names_count = False
        self.partners: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.links: dict[int, Link] = {}
        """Our layer -> its link, before layers that one side has fused are added."""

    def run(self) -> list[Link]:
        """Run all stages and return the links."""
        likely = self._align(self.scores)
        self._add_names(likely)
        if self.names.any():
            likely = self._align(self.scores)
        if self.by_flow:
            likely = self._align_by_flow(likely)
        self._match_same_nodes()
        self._accept(likely)
        self._match_out_of_order()
        self._match_swapped()
        fused = _Fusions(self.sides, self.links, self.names_count, self.of_one_model).run()
        return [self._with_confidence(link, likely) for link in fused]

    def _with_confidence(self, link: Link, likely: Scores) -> Link:
        """Return a link of several layers with the probability that any of either side belong together."""
        together = float(likely[np.ix_(link.ours, link.theirs)].sum())
        return link._replace(confidence=min(max(link.confidence, together), _MOST_CERTAIN[link.method]))

    def _align(self, scores: Scores) -> Scores:
        """Return the probability of each pair in an alignment along the data flow, or in the order of execution."""
        orders = [np.array(side.order if self.by_flow else range(len(side))) for side in self.sides]
        alone = [
            np.array([_ALONE[side.classes[at]] for at in order]) for side, order in zip(self.sides, orders, strict=True)
        ]
        where = np.ix_(orders[0], orders[1])
        likely = np.zeros_like(scores)
        likely[where] = posterior(scores[where], (alone[0], alone[1]))
        return likely

    def _add_names(self, likely: Scores) -> None:
        """Add names to the evidence as far as they agree with the rest.

        Names without numbers may not contradict it; those that a counter for a kind of layer made must be those that it
        finds without names.
        """
        first, second = self.sides
        words, numbered = score_names(first, second)
        both_multiply = (
            pair for pair in self._picked(words) if first.classes[pair[0]] == second.classes[pair[1]] == "compute"
        )
        agree = [self.scores[pair] > _FITS for pair in both_multiply]
        trusts_words = not agree or sum(agree) > _TRUSTED_WORDS * len(agree)
        good: Counter[str] = Counter()
        found: Counter[str] = Counter()
        for pair in self._picked(numbered):  # of either class: counted names that shifted seldom meet their own
            if first.classes[pair[0]] != "passing":  # a conversion is named after its neighbour
                good[first.kinds[pair[0]]] += likely[pair]
                found[first.kinds[pair[0]]] += likely[pair[0]].sum()
        shifted = {kind for kind, sum_ in found.items() if good[kind] <= _TRUSTED_NUMBERS * sum_}
        trusts_numbers = sum(good[kind] for kind in good.keys() - shifted) >= 2
        if trusts_words:
            self.names = words
        if trusts_numbers:
            numbered[[kind in shifted for kind in first.kinds]] = 0
            self.names = np.where(self.names == 0, np.minimum(numbered, _MOST_FOR_NUMBERS), self.names)
        self.names_count = trusts_numbers or (trusts_words and bool(agree or words.max(initial=0) > _TELLING))
        self.scores[self.possible] += self.names[self.possible]

    def _picked(self, names: Scores) -> list[tuple[int, int]]:
        """Return the layers whose names are like those of a single layer, with that one."""
        best = names.argmax(1)
        return [
            (ours, theirs)
            for ours, theirs in enumerate(best.tolist())
            if names[ours, theirs] > _TELLING and (names[ours] == names[ours, theirs]).sum() == 1
        ]

    def _align_by_flow(self, likely: Scores) -> Scores:
        """Align again with the evidence that producers and readers of a pair are pairs too."""
        first, second = self.sides
        for _ in range(_ROUNDS):
            makers = _from_makers(_from_makers(likely, first.reads).T, second.reads).T
            readers = _from_readers(_from_readers(likely, first.reads).T, second.reads).T
            support = _FLOW * np.minimum(makers + readers, _MOST_FLOW)
            supported = np.where(self.possible, self.scores + support, self.scores)
            likely = self._align(supported)
        self.scores = supported
        return likely

    def _match_same_nodes(self) -> None:
        """Pair the layers of two profiles of one model that alone run a node, wherever they are; equal nodes first."""
        if not self.of_one_model:
            return
        alone = [_alone_by_nodes(side) for side in self.sides]
        same = [(alone[0][key], alone[1][key]) for key in sorted(alone[0].keys() & alone[1].keys(), key=str)]
        for ours, theirs in [*same, *np.argwhere(self.possible & (self.nodes > 0)).tolist()]:
            if ours not in self.partners[0] and theirs not in self.partners[1]:
                self._pair(ours, theirs, "nodes", 1.0)

    def _accept(self, likely: Scores) -> None:
        """Pair what is more probable than everything else, in doubt only with weights or names."""
        for ours, theirs in np.argwhere(likely > _ACCEPTED).tolist():
            if ours in self.partners[0] or theirs in self.partners[1]:
                continue
            named = self.names[ours, theirs] > _TELLING
            method: MatchMethod = "weights" if self.weights[ours, theirs] > 0 else "names" if named else "structure"
            if likely[ours, theirs] > (_ACCEPTED_BY_STRUCTURE if method == "structure" else _ACCEPTED):
                self._pair(ours, theirs, method, float(likely[ours, theirs]))

    def _pair(self, ours: int, theirs: int, method: MatchMethod, probability: float) -> None:
        self.partners[0][ours], self.partners[1][theirs] = theirs, ours
        self.links[ours] = Link((ours,), (theirs,), method, min(probability, _MOST_CERTAIN[method]))

    def _free(self, side: int) -> list[int]:
        return [at for at in range(len(self.sides[side])) if at not in self.partners[side]]

    def _match_out_of_order(self) -> None:
        """Pair layers that moved, where the evidence for a pair is strong and no other pair comes near it."""
        rows, columns = self._free(0), self._free(1)
        left = self.scores[np.ix_(rows, columns)]
        clear = np.argwhere(left > _CLEAR)
        for row, column in clear[np.argsort(-left[tuple(clear.T)], kind="stable")].tolist():
            score = left[row, column]
            rivals = max(np.delete(left[row], column).max(initial=0), np.delete(left[:, column], row).max(initial=0))
            ours, theirs = rows[row], columns[column]
            if score - rivals > _AHEAD and ours not in self.partners[0] and theirs not in self.partners[1]:
                method: MatchMethod = "weights" if self.weights[ours, theirs] > 0 else "out of order"
                self._pair(ours, theirs, method, 1 - float(np.exp(rivals - score)))

    def _match_swapped(self) -> None:
        """Pair the only layers that multiply, look alike and are left between the same neighbours."""
        places = [
            np.cumsum([at in partners for at in side.order])[np.argsort(side.order)]
            for side, partners in zip(self.sides, self.partners, strict=True)
        ]
        near = [
            (ours, theirs)
            for ours in self._free(0)
            if self.sides[0].classes[ours] == "compute"
            for theirs in self._free(1)
            if self.scores[ours, theirs] > _SWAPPED_LOOKS and abs(places[0][ours] - places[1][theirs]) <= _NEAR
        ]
        counts = Counter(ours for ours, _ in near), Counter(theirs for _, theirs in near)
        for ours, theirs in near:
            if counts[0][ours] == counts[1][theirs] == 1:
                self._pair(ours, theirs, "swapped", 1.0)


def _alone_by_nodes(side: LayerFeatures) -> dict[tuple[str, frozenset[str]], int]:
    """Return (class, nodes) -> the only layer of that class that runs exactly these nodes."""
    places: dict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for at, layer in enumerate(side.layers):
        if layer.onnx_nodes:
            places[side.classes[at], frozenset(layer.onnx_nodes)].append(at)
    return {key: found[0] for key, found in places.items() if len(found) == 1}


def _from_makers(likely: Scores, reads: Sequence[Sequence[int]]) -> Scores:
    """Return for each row the mean of the rows of its producers."""
    result = np.zeros_like(likely)
    for at, makers in enumerate(reads):
        if makers:
            result[at] = likely[makers].mean(0)
    return result


def _from_readers(likely: Scores, reads: Sequence[Sequence[int]]) -> Scores:
    """Return for each row the sum of the rows of its readers, each shared among their producers."""
    result = np.zeros_like(likely)
    for at, makers in enumerate(reads):
        if makers:
            result[makers] += likely[at] / len(makers)
    return result


class _Fusions:
    """Adds layers without a partner to the pair into which the other side has fused them."""

    def __init__(
        self,
        sides: tuple[LayerFeatures, LayerFeatures],
        links: Mapping[int, Link],
        names_count: bool,
        of_one_model: bool,
    ) -> None:
        self._sides = sides
        self._links = list(links.values())
        self._groups: list[tuple[list[int], list[int]]] = [([*link.ours], [*link.theirs]) for link in self._links]
        self._of: tuple[dict[int, int], dict[int, int]] = (
            {at: number for number, link in enumerate(self._links) for at in link.ours},
            {at: number for number, link in enumerate(self._links) for at in link.theirs},
        )
        """Layer -> the number of its group, for either side."""
        self._names_count = names_count
        self._of_one_model = of_one_model

    def run(self) -> list[Link]:
        """Return the links with the layers that belong to them."""
        for side in (0, 1):
            # Node -> the layers that run it, without nodes that many run, such as a constant.
            runs: dict[str, list[int]] = defaultdict(list)
            for at, layer in enumerate(self._sides[1 - side].layers):
                for node in layer.onnx_nodes:
                    runs[node].append(at)
            runs = {node: places for node, places in runs.items() if len(places) <= _FEW}
            free = [at for at in range(len(self._sides[side])) if at not in self._of[side]]
            for at in [*free, *reversed(free)]:  # twice, so that one may follow another in either direction
                if at not in self._of[side]:
                    self._add(side, at, runs)
        groups = list(zip(self._links, self._groups, strict=True))
        kept = [
            link._replace(ours=tuple(sorted(ours)), theirs=tuple(sorted(theirs))) for link, (ours, theirs) in groups
        ]
        kept = [link for link, (first, _) in zip(kept, groups, strict=True) if self._agrees_with_flow(first)]
        return [*self._joined_twins(kept)]

    def _joined_twins(self, links: Sequence[Link]) -> Iterator[Link]:
        """Yield the links, those of twins by looks as one: which of two is which of the others cannot be known."""
        twins: dict[tuple[int | None, int | None], list[Link]] = defaultdict(list)
        for link in links:
            numbers = self._sides[0].twins[link.ours[0]], self._sides[1].twins[link.theirs[0]]
            if numbers == (None, None) or link.method not in _BY_LOOKS:
                yield link
            else:
                twins[numbers].append(link)
        for numbers, found in twins.items():
            mine = tuple(sorted(at for link in found for at in link.ours))
            yours = tuple(sorted(at for link in found for at in link.theirs))
            ours, theirs = (side.twins.count(number) for side, number in zip(self._sides, numbers, strict=True))
            if None not in numbers and ours == theirs == len(found):
                yield Link(mine, yours, found[0].method, min(link.confidence for link in found))

    def _agrees_with_flow(self, link: Link) -> bool:
        """Return whether the layers before two, or else those behind them, are matched with each other.

        Without names and weights, branches that look alike are distinguished only by this, and conversions always.
        """
        (first, second), ours, theirs = self._sides, link.ours[0], link.theirs[0]
        passes = first.classes[ours] == "passing"
        if not (passes or link.method == "structure") or not (first.knows_flow and second.knows_flow):
            return True
        mine, yours = self._near(0, first.reads[ours]), self._near(1, second.reads[theirs])
        if not (mine and yours):
            mine, yours = self._near(0, first.readers[ours]), self._near(1, second.readers[theirs])
        return not (passes or (mine and yours)) or not {*mine}.isdisjoint(yours)

    def _add(self, side: int, at: int, runs: Mapping[str, Sequence[int]]) -> None:
        features = self._sides[side]
        near = self._near(side, [*features.reads[at], *features.readers[at]])
        group = self._by_nodes(side, at, runs, set(near))
        if group is None and features.classes[at] in ("pointwise", "reduce"):
            group = self._between_neighbours(side, at)
        if group is not None:
            self._groups[group][side].append(at)
            self._of[side][at] = group

    def _class_of(self, group: int) -> LayerClass:
        return self._sides[0].classes[self._links[group].ours[0]]

    def _near(self, side: int, places: Sequence[int]) -> list[int]:
        of = self._of[side]
        return list(dict.fromkeys(of[place] for place in places if place in of))

    def _by_nodes(self, side: int, at: int, runs: Mapping[str, Sequence[int]], near: Collection[int]) -> int | None:
        """Return the group whose other side runs the nodes of this layer, if no free layer there runs one of them.

        If the profiles are of two models, it must be a neighbour in the data flow too.
        """
        features = self._sides[side]
        nodes = features.layers[at].onnx_nodes
        if not self._of_one_model and not (self._names_count and features.classes[at] in ("pointwise", "reduce")):
            return None
        places = [place for node in nodes for place in runs.get(node, ())]
        of = self._of[1 - side]
        if any(place not in of for place in places):
            return None
        groups = [of[place] for place in places if self._of_one_model or of[place] in near]
        # A layer that only moves data was not what is split into several.
        return min(groups, key=lambda group: self._class_of(group) in ("layout", "passing"), default=None)

    def _between_neighbours(self, side: int, at: int) -> int | None:
        """Return the group of its producer if on the other side the reader's partner reads it directly.

        Runtimes fuse into layers that multiply or reduce; between elementwise ones the layer is rather a new one.
        """
        features, other = self._sides[side], self._sides[1 - side]
        readers = self._near(side, features.readers[at])
        for group in self._near(side, features.reads[at]):
            made = set(self._groups[group][1 - side])
            if self._class_of(group) not in ("compute", "reduce"):
                continue
            for reader in readers:
                reads = other.reads[self._groups[reader][1 - side][0]]
                if reader != group and not made.isdisjoint(reads):
                    return group
        return None
