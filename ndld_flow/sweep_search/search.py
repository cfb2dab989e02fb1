"""The protocol of searches: ask for points, then report their results. Each file of `methods/` has one."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ndld_flow.base.text import visible_name
from ndld_flow.sweep_search.space import Assignment, NumberedSpace, Numbers, Place, Space, all_tried

_FOLDER = "ndld_flow.sweep_search.methods"
METHODS = {
    file.stem: re.findall(r'^"""(.+)', file.read_text(encoding="utf-8"), re.MULTILINE)[0].strip('"')
    for folder in importlib.import_module(_FOLDER).__path__  # by name: the methods import this module
    for file in sorted(Path(folder).glob("[!_]*.py"))
}
"""Method -> its summary, the first line of its file's docstring. No method is imported."""
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[tuple(METHODS)]
Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True)
class Saturation:
    """The condition under which a search ends early."""

    gain: float = 0.02
    """Relative improvement of the first objective that still counts: 0.02 is 2 %."""
    points: int = 2
    """Number of points in a row below `gain` that ends the search."""
    along: str = ""
    """An axis whose values are tried in order for each combination of the others; each series ends separately."""


@dataclass(frozen=True)
class SearchOptions:
    """Settings of a search."""

    method: Method = "grid"
    directions: tuple[Direction, ...] = ()
    """One per objective; empty without objectives."""
    points: int | None = None
    """Upper bound of the points to try."""
    seed: int = 0
    start: Assignment | None = None
    """The recipe's own point, if it is in the space: one-at-a-time varies it, and climbs start here."""
    saturation: Saturation | None = None


@dataclass(frozen=True)
class Trial:
    """The result of a point."""

    point: Assignment
    objectives: tuple[float, ...] | None
    """In the order of `directions`; None if it failed, or was not measured because a constraint failed."""
    violation: float = 0.0
    """0 if every constraint is met; else the largest distance from a bound, relative to it."""


class Search(Protocol):
    """An ask-and-tell search; deterministic: the same results give the same points."""

    @property
    def size(self) -> int | None:
        """Upper bound of its points; None if it is unknown."""

    @property
    def stopped_because(self) -> str:
        """The reason why it ended, such as `all 24 points tried` or `40 of 512 points: the budget`; else empty."""

    def ask(self, count: int) -> list[Assignment]:
        """Return at most `count` new points; none if the search has ended."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the results of the points of the last `ask`, in its order."""


Quality = tuple[int, float]
"""Less is better: allowed points by objective, then points that violate constraints by violation, then failed ones."""

FAILED: Quality = (2, 0.0)


def quality_of(trial: Trial, direction: Direction) -> Quality:
    """Return the quality of a trial by its first objective."""
    if trial.violation > 0:
        return 1, trial.violation
    if trial.objectives is None or not math.isfinite(trial.objectives[0]):
        return FAILED
    return 0, trial.objectives[0] if direction == "minimize" else -trial.objectives[0]


StartSearch = Callable[[Space, SearchOptions], Search]


@dataclass(frozen=True)
class SearchMethod:
    """A method of search: `METHOD` in a file of `methods/`, whose name is the word in recipes."""

    start: StartSearch
    """Returns a search. Raises ValueError if the method does not fit the space or the objectives, and BackendError if
    it needs a library that is not installed."""
    counts: bool = True
    """It tries values one by one: an axis of any number between two bounds needs a `step`."""
    adapts: bool = False
    """The next points depend on earlier results, so that it needs an objective."""
    one_objective: bool = False
    """It optimizes one objective only."""


def find_method(name: str) -> SearchMethod:
    """Return the method of this name. Imports no other."""
    method: SearchMethod = importlib.import_module(f"{_FOLDER}.{name}").METHOD
    return method


def list_methods(is_listed: Callable[[SearchMethod], bool]) -> str:
    """Return the methods for which a condition holds, as an alternative: `method: random` or `method: tpe`."""
    return " or ".join(f"`method: {name}`" for name in METHODS if is_listed(find_method(name)))


class InOrder:
    """Points in an order that depends on neither results nor the size of requests."""

    def __init__(self, space: NumberedSpace, places: Iterable[Place], size: int | None) -> None:
        self._space, self._places, self.size = space, iter(places), size
        self._asked, self._is_over = 0, size == 0

    @property
    def stopped_because(self) -> str:
        return all_tried(self._asked) if self._is_over else ""

    def ask(self, count: int) -> list[Assignment]:
        points = [self._space.point(place) for place in islice(self._places, count)]
        self._asked += len(points)
        self._is_over = self._asked == self.size or len(points) < count
        return points

    def tell(self, trials: Sequence[Trial]) -> None:
        pass


def check_countable(space: Space, method: str) -> None:
    """Raise ValueError for an axis whose values are not countable."""
    for axis in space.axes:
        if isinstance(axis, Numbers) and axis.step is None and not axis.integer and axis.low < axis.high:
            others = list_methods(lambda other: not other.counts)
            raise ValueError(
                f"{visible_name(axis.name)}: {method} cannot try every number from {axis.low:g} to {axis.high:g}; "
                f"give a `step`, or use {others}."
            )
