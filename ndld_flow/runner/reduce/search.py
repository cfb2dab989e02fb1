"""Search for a small set of nodes that still fails: the suspects, or else by halving, and then near what was found.

1. The nodes with evidence against them, the strongest first, are tried together, then twice as many.
2. Halving finds the shortest beginning of the execution order that fails; its last node is needed.
3. What else is needed is most likely near: the nodes at the smallest distance from the needed ones are added, 1, 2, 4,
   ... of them, until the set fails; halving finds the farthest that is needed. This is repeated until the needed nodes
   fail alone. With k of n nodes needed at distances that d nodes do not exceed, it takes log2 n + 2 k log2 d trials,
   against k log2 n of a search that ignores the edges.
4. Nodes are left out one at a time until none can be: the set is 1-minimal.

Only sets that were tried are returned, so that nothing is assumed about failures of larger sets.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence

from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept
from ndld_flow.reduction.part import NodeFacts

Fails = Callable[[Kept], bool]
_CERTAIN = 1.0
_FIRST_SUSPECTS = 8


class NodeSearch:
    """A search among nodes that fail together."""

    def __init__(self, nodes: Sequence[NodeFacts], severity: Mapping[int, float], fails: Fails) -> None:
        self._order = [node.index for node in nodes]
        self._severity, self._fails = severity, fails
        self._near = _neighbours(nodes)
        self.smallest: Kept = frozenset(self._order)
        """The smallest set that failed so far."""
        self.minimal = False
        """True if no single node of the smallest set can be left out."""

    def run(self) -> None:
        """Search until the set is minimal, or the trials are spent."""
        try:
            if not self._try_suspects():
                self._halve()
            self._leave_out()
        except BudgetSpentError:
            return
        self.minimal = True

    def _try(self, kept: Collection[int]) -> bool:
        tried = frozenset(kept)
        fails = bool(tried) and (tried == self.smallest or self._fails(tried))
        if fails and len(tried) < len(self.smallest):
            self.smallest = tried
        return fails

    def _try_suspects(self) -> bool:
        """Try the most suspect nodes, and halve them if they fail."""
        ranked = sorted((index for index in self._order if self._severity.get(index)), key=self._rank)
        certain = sum(self._severity[index] >= _CERTAIN for index in ranked)
        size = certain or min(len(ranked), _FIRST_SUSPECTS)
        while 0 < size <= len(self._order) // 2:
            if self._try(ranked[:size]):
                self._narrow([], ranked[:size])
                return True
            if size >= len(ranked):
                return False
            size = min(2 * size, len(ranked))
        return False

    def _rank(self, index: int) -> tuple[float, int]:
        return -self._severity.get(index, 0.0), index

    def _halve(self) -> None:
        order = [index for index in self._order if index in self.smallest]
        high = self._first_failing(lambda count: order[:count], 0, len(order))
        self._narrow([order[high - 1]], order[: high - 1])

    def _first_failing(self, chosen: Callable[[int], list[int]], low: int, high: int) -> int:
        """Return the smallest count found whose nodes fail, given that those of `high` do and those of `low` do not."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._try(chosen(middle)):
                high = middle
            else:
                low = middle
        return high

    def _narrow(self, needed: list[int], rest: Sequence[int]) -> None:
        """Find the nodes of `rest` that are needed too, the nearest first; together with `needed` all of them fail."""
        while rest and not self._try(needed):
            ordered = self._by_distance(needed, rest) if needed else sorted(rest, key=self._rank)

            def chosen(count: int, found: tuple[int, ...] = tuple(needed), near: Sequence[int] = ordered) -> list[int]:
                return [*found, *near[:count]]

            low, high = 0, 1
            while high < len(ordered) and not self._try(chosen(high)):
                low, high = high, 2 * high
            high = self._first_failing(chosen, low, min(high, len(ordered)))
            needed.append(ordered[high - 1])
            rest = ordered[: high - 1]

    def _by_distance(self, needed: Collection[int], rest: Collection[int]) -> list[int]:
        distance = dict.fromkeys(needed, 0)
        waiting = deque(needed)
        while waiting:
            node = waiting.popleft()
            for near in self._near[node]:
                if near not in distance:
                    distance[near] = distance[node] + 1
                    waiting.append(near)
        return sorted(rest, key=lambda index: (distance.get(index, len(self._order)), *self._rank(index)))

    def _leave_out(self) -> None:
        again = True
        while again and len(self.smallest) > 1:
            again = any(self._try(self.smallest - {index}) for index in sorted(self.smallest, key=self._rank)[::-1])


def _neighbours(nodes: Sequence[NodeFacts]) -> dict[int, set[int]]:
    made = {name: node.index for node in nodes for name in node.outputs}
    near: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        for name in node.inputs:
            if name in made:
                near[node.index].add(made[name])
                near[made[name]].add(node.index)
    return near
