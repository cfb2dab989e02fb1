"""The points of a space that were not tried yet."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from ndld_flow.sweep_search.axis_values import AxisValues, Position
from ndld_flow.sweep_search.numbered_space import NumberedSpace, Place

_TRIES = 64


class UntriedPoints:
    """Gives each point once, at random or by place; the order depends only on the seed.

    A draw costs the same however many points are excluded or left.
    """

    def __init__(self, space: NumberedSpace, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)  # noqa: S311 (it keeps nothing secret)
        self._left = _Remaining(space.count) if space.finite else None
        self._taken: set[Place] = set()
        self._found_none = False

    @property
    def exhausted_because(self) -> str:
        """`all 24 points tried` when none is left; else empty."""
        if self._found_none or (self._left is not None and not self._left.count):
            return f"all {len(self._taken)} points tried"
        return ""

    def take(self, place: Place) -> bool:
        """Take this point; False when it is excluded or was taken before."""
        number = self._space.number(place)
        if number is None or place in self._taken:
            return False
        self._taken.add(place)
        if self._left is not None:
            self._left.remove(number)
        return True

    def draw(self) -> Place | None:
        """Take a random point, uniformly, and log-uniformly on logarithmic axes. None when none is left.

        When logarithmic axes are nearly exhausted, the remaining points are equally likely.
        """
        place = self._draw_by_scale() if any(axis.log for axis in self._space.axes) else None
        if place is None:
            place = self._draw_evenly()
        self._found_none = place is None
        return place

    def _draw_by_scale(self) -> Place | None:
        return self._first_free(
            tuple(axis.nearest(self._random.random()) if axis.log else at for axis, at in self._anywhere())
            for _ in range(_TRIES)
        )

    def _draw_evenly(self) -> Place | None:
        if self._left is None:
            return self._first_free(tuple(at for _, at in self._anywhere()) for _ in range(_TRIES))
        if not self._left.count:
            return None
        place = self._space.place(self._left.at(self._random.randrange(self._left.count)))
        return place if self.take(place) else None

    def _first_free(self, places: Iterable[Place]) -> Place | None:
        return next((place for place in places if self.take(place)), None) if self._space.count else None

    def _anywhere(self) -> Iterator[tuple[AxisValues, Position]]:
        """Yield each axis with a position of a random point that is not excluded."""
        place = self._space.place(self._random.randrange(self._space.count))
        for axis, at in zip(self._space.axes, place, strict=True):
            yield axis, axis.nearest(self._random.random()) if axis.count is None else at


class _Remaining:
    """The numbers from 0 to count - 1 without removed ones, unordered: the last number replaces a removed one.

    Only moved numbers are stored (Fisher and Yates' shuffle without its list).
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._moved: dict[int, int] = {}
        self._where: dict[int, int] = {}

    def at(self, index: int) -> int:
        return self._moved.get(index, index)

    def remove(self, number: int) -> None:
        self.count -= 1
        index, last = self._where.get(number, number), self.at(self.count)
        self._moved[index] = last
        self._where[last] = index
