"""Decide where names of two profiles can be trusted.

The evidence is pairs that are certain without names: around them, names agree or contradict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ndld_flow.records.profile import Layer

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
