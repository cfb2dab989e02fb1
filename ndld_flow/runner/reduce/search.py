"""Search for a small set of nodes that still fails: the suspects, or else by halving, and then near what was found.

1. The nodes with evidence against them are tried alone, then with the nodes that they read, then with those that read
   them.
2. Without evidence: a failure mostly needs an operator and what it reads. Of each kind of node (its operator and those
   that it reads) one example with the nodes that it reads represents all; halving finds one that fails.
3. Otherwise halving finds the shortest beginning of the execution order that fails; its last node is needed.
4. What else is needed is most likely near: the nodes at the smallest distance from the needed ones are added, 1, 2, 4,
   ... of them, until the set fails; halving finds the farthest that is needed. This is repeated until the needed nodes
   fail alone. With k of n nodes needed at distances that d nodes do not exceed, it takes log2 n + 2 k log2 d trials,
   against k log2 n of a search that ignores the edges.
5. Nodes are left out one at a time until none can be: the set is 1-minimal.

Only sets that were tried are returned, so that nothing is assumed about failures of larger sets.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence

from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept
from ndld_flow.reduction.part import NodeFacts

Fails = Callable[[Kept], bool]
_CERTAIN = 1.0
_FIRST_SUSPECTS = 8
_MOST_AROUND = 8
"""Nodes next to the suspects that are tried with them."""
_FEW = 4
"""Sets of so few nodes, or of so few for each that is known to be needed, are not halved: nodes are left out one at a
time."""
_MANY = 3


class NodeSearch:
    """A search among nodes that fail together."""

    def __init__(self, nodes: Sequence[NodeFacts], severity: Mapping[int, float], fails: Fails) -> None:
        self._order = [node.index for node in nodes]
        self._severity, self._fails = severity, fails
        self._types = {node.index: node.op_type for node in nodes}
        made = {name: node.index for node in nodes for name in node.outputs}
        self._reads: dict[int, set[int]] = defaultdict(set)
        self._readers: dict[int, set[int]] = defaultdict(set)
        for node in nodes:
            for name in node.inputs:
                if name in made:
                    self._reads[node.index].add(made[name])
                    self._readers[made[name]].add(node.index)
        self.smallest: Kept = frozenset(self._order)
        """The smallest set that failed so far."""
        self._known: dict[Kept, bool] = {}
        self.minimal = False
        """True if no single node of the smallest set can be left out."""

    def run(self) -> None:
        """Search until the set is minimal, or the trials are spent, given that all nodes fail, or those located."""
        self._known[frozenset(self._order)] = True
        try:
            if len(self.smallest) == len(self._order):
                self._halve_examples()
                self._halve()
            self._leave_out()
        except BudgetSpentError:
            return
        self.minimal = True

    def _try(self, kept: Collection[int]) -> bool:
        tried = frozenset(kept)
        if tried not in self._known:
            self._known[tried] = bool(tried) and self._fails(tried)
        if self._known[tried] and len(tried) < len(self.smallest):
            self.smallest = tried
        return self._known[tried]

    def locate(self) -> bool:
        """Try the suspects and what is near them; return whether a set fails, and find the needed nodes of it."""
        ranked = sorted((index for index in self._order if self._severity.get(index)), key=self._rank)
        certain = sum(self._severity[index] >= _CERTAIN for index in ranked)
        suspects = ranked[: certain or _FIRST_SUSPECTS]
        around = self._by_distance(suspects, [index for index in self._order if index not in suspects])
        read = {each for index in suspects for each in self._reads[index]}.difference(suspects)
        near = read.union(*(self._readers[index] for index in suspects)).difference(suspects)
        for count in sorted({0, min(len(read), _MOST_AROUND), min(len(near), _MOST_AROUND)}) if suspects else ():
            if self._try([*suspects, *around[:count]]):
                self._narrow(suspects if count else [], around[:count] if count else suspects)
                return True
        return False

    def _halve_examples(self) -> None:
        """Halve the kinds of nodes, each with an example; that all of them fail together need not be true."""
        examples: dict[tuple[str, ...], list[int]] = {}
        for index in self._order:
            read = sorted(self._reads[index])
            kind = (self._types[index], *sorted({self._types[each] for each in read}))
            examples.setdefault(kind, [index, *read])
        stars = list(examples.values())
        if len(stars) > len(self._order) // 2:
            return
        high = self._first_failing(lambda count: [node for star in stars[:count] for node in star], 0, len(stars))
        star = stars[high - 1]
        if self._try(star):
            self._narrow(star[:1], star[1:])

    def _rank(self, index: int) -> tuple[float, int]:
        return -self._severity.get(index, 0.0), index

    def _halve(self) -> None:
        order = [index for index in self._order if index in self.smallest]
        if len(order) <= _FEW:
            return
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
            if len(needed) >= _MANY and len(self.smallest) <= _FEW * len(needed):
                return  # much of what is left is needed: leaving out single nodes takes fewer trials
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
        """Return nodes by their distance, and of those as near what is read first."""
        distance = dict.fromkeys(needed, 0.0)
        waiting = deque(needed)
        while waiting:
            node = waiting.popleft()
            for near, extra in (
                *((each, 1.0) for each in self._reads[node]),
                *((each, 1.1) for each in self._readers[node]),
            ):
                if near not in distance:
                    distance[near] = distance[node] + extra
                    waiting.append(near)
        return sorted(rest, key=lambda index: (distance.get(index, math.inf), *self._rank(index)))

    def _leave_out(self) -> None:
        before: Kept = frozenset()
        while before != self.smallest:
            before = self.smallest
            for index in sorted(before, key=self._rank)[::-1]:
                self._try(self.smallest - {index})
