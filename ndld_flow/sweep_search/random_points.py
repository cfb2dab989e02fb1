"""Points at random, none of them twice."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.sweep_search.numbered_space import NumberedSpace
from ndld_flow.sweep_search.search import Trial
from ndld_flow.sweep_search.space import Assignment, Space
from ndld_flow.sweep_search.unasked import Unasked


class RandomPoints:
    """Seeded draws, until a finite space is exhausted. The order does not depend on how many are asked for at once."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = NumberedSpace(space)
        self._unasked = Unasked(self._space, seed)
        self.size = self._space.size

    @property
    def stopped_because(self) -> str:
        return self._unasked.exhausted_because

    def ask(self, count: int) -> list[Assignment]:
        drawn = (self._unasked.draw() for _ in range(count))
        return [self._space.point(place) for place in drawn if place is not None]

    def tell(self, trials: Sequence[Trial]) -> None:
        pass
