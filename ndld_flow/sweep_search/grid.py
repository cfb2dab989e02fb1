"""Every point of the space."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.base.text import visible_name
from ndld_flow.sweep_search.numbered_space import NumberedSpace
from ndld_flow.sweep_search.search import Trial
from ndld_flow.sweep_search.space import Assignment, Numbers, Space


class Grid:
    """All points in order, the last axis fastest. The order does not depend on how many are asked for at once."""

    def __init__(self, space: Space) -> None:
        check_countable(space, "grid")
        self._space = NumberedSpace(space)
        self._asked = 0
        self.size = self._space.count

    @property
    def stopped_because(self) -> str:
        return f"all {self.size} points tried" if self._asked == self.size else ""

    def ask(self, count: int) -> list[Assignment]:
        numbers = range(self._asked, min(self._asked + count, self.size))
        self._asked = numbers.stop
        return [self._space.point(self._space.place(number)) for number in numbers]

    def tell(self, trials: Sequence[Trial]) -> None:
        pass


def check_countable(space: Space, method: str) -> None:
    """Raises ValueError, with a sentence, for an axis whose values cannot be tried one after the other."""
    for axis in space.axes:
        if isinstance(axis, Numbers) and axis.step is None and not axis.integer and axis.low < axis.high:
            raise ValueError(
                f"{visible_name(axis.name)}: any number from {axis.low:g} to {axis.high:g} is too many for {method}; "
                "give a `step`, or use `method: random` or `method: tpe`."
            )
