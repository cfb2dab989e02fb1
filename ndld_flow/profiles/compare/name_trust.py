"""Where two profiles mean the same by a name.

Pairs that are certain without names show it: around them, names agree or point elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ndld_flow.records.profile import Layer

Names = frozenset[str]


def names_of(layers: Sequence[Layer], by_nodes: bool) -> list[Names]:
    """Return what each layer is called: the ONNX nodes it came from, or its own name where those are not compared."""
    if by_nodes:
        return [frozenset(layer.onnx_nodes) for layer in layers]
    return [frozenset(filter(None, (layer.name,))) for layer in layers]


def agree(ours: Names, theirs: Names) -> bool:
    """Return whether two layers are called alike: the same, more than half the same, or one a part of the other.

    Of fused layers, numbers that are shifted by one still have some names in common.
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
            # Names that the other side does not have at all neither agree nor point elsewhere.
            if agrees or not (ours[one].isdisjoint(known[1]) and theirs[other].isdisjoint(known[0])):
                self._ours[one] = self._theirs[other] = agrees
        self._order = sorted(self._ours), sorted(self._theirs)

    @property
    def share(self) -> float | None:
        """The part of the certain pairs whose names agree; None where none can be judged."""
        return sum(self._ours.values()) / len(self._ours) if self._ours else None

    def agrees(self, one: int) -> bool | None:
        """Return whether the name of one of our layers is that of its certain partner; None where unknown."""
        return self._ours.get(one)

    def forbids(self, one: int, other: int) -> bool:
        """Return whether one of two layers has a certain partner of another name."""
        return self._ours.get(one) is False or self._theirs.get(other) is False

    def around(self, one: int, other: int) -> float | None:
        """Return the part of the nearest judged layers, before and after on both sides, whose names agree."""
        votes = [*self._nearest(self._ours, self._order[0], one), *self._nearest(self._theirs, self._order[1], other)]
        return sum(votes) / len(votes) if votes else None

    @staticmethod
    def _nearest(judged: Mapping[int, bool], order: Sequence[int], at: int) -> list[bool]:
        place = bisect_left(order, at)
        after = place + (place < len(order) and order[place] == at)
        found = [order[place - 1]] if place else []
        found += [order[after]] if after < len(order) else []
        return [judged[one] for one in ([at] if at in judged else found)]
