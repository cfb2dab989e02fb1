"""Made-up landscapes that look like what sweeps measure, to see how well searches do on them. Less is better."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ndld_flow.sweep_search.search import Method, Search, SearchOptions, Trial
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Assignment, Choices, NumberedSpace, Numbers, Space


@dataclass(frozen=True)
class Landscape:
    """A space, what each point takes, and what it is allowed to take."""

    name: str
    space: Space
    height: Callable[[Assignment], float]
    violation: Callable[[Assignment], float] = lambda point: 0.0
    noise: float = 0.0
    """Relative scatter of one measurement."""

    @cached_property
    def heights(self) -> list[float]:
        """Return the values of all feasible points, without noise."""
        points = make_search(self.space, SearchOptions()).ask(10**6)
        return sorted(self.height(point) for point in points if self.violation(point) <= 0)

    def trial(self, point: Assignment, scatter: random.Random) -> Trial:
        violation = self.violation(point)
        measured = self.height(point) * math.exp(scatter.gauss(0, self.noise))
        return Trial(point, (measured,) if violation <= 0 else None, violation)

    def regret(self, point: Assignment) -> float:
        """Return the loss against the best feasible point, relative to it."""
        return self.height(point) / self.heights[0] - 1


def session_latency(point: Assignment) -> float:
    """Threads help up to the cores there are; the highest level and parallel execution interact."""
    threads, level, execution = int(str(point["threads"])), str(point["level"]), str(point["execution"])
    busy = 1 / min(threads, 6) + 0.03 * max(0, threads - 6)
    speed = {"disable": 1.6, "basic": 1.2, "extended": 1.05, "all": 1.0}[level]
    together = 1.15 if execution == "parallel" and threads > 4 else 0.97 if execution == "parallel" else 1.0
    spin = 0.95 if point["spin"] else 1.0
    arena = 1.0 if point["arena"] else 1.04
    return 10 * (0.2 + busy) * speed * together * spin * arena


SESSION = Space(
    (
        Choices("threads", (1, 2, 3, 4, 6, 8, 12, 16)),
        Choices("level", ("disable", "basic", "extended", "all")),
        Choices("execution", ("sequential", "parallel")),
        Choices("spin", (True, False)),
        Choices("arena", (True, False)),
    )
)


def bowl(point: Assignment) -> float:
    """One valley, steeper along one axis, on a ladder of doublings and a logarithmic range."""
    a, b, c = (float(str(point[name])) for name in "abc")
    return 1 + 0.15 * (math.log2(a) - 4) ** 2 + 0.4 * (math.log10(b) - 1.7) ** 2 + 0.05 * abs(c - 6)


BOWL = Space(
    (
        Choices("a", (1, 2, 4, 8, 16, 32, 64, 128)),
        Numbers("b", 1, 1000, step=111, integer=True, log=True),
        Numbers("c", 0, 10, step=2, integer=True),
    )
)


def stairs(point: Assignment) -> float:
    """Plateaus: most steps to a neighbour change nothing."""
    a, b = float(str(point["a"])), float(str(point["b"]))
    kind = {"none": 0.6, "some": 0.3, "most": 0.0, "every": 0.2}[str(point["kind"])]
    return 2 + math.floor(abs(a - 11) / 2) * 0.25 + abs(b - 2) * 0.3 + kind


STAIRS = Space(
    (
        Numbers("a", 0, 15, integer=True),
        Numbers("b", 0, 3, integer=True),
        Choices("kind", ("none", "some", "most", "every")),
    )
)


def block_speed(point: Assignment) -> float:
    """Six switches, each of which saves something, and two that only do so together."""
    saved = sum(0.02 * (n + 1) for n in range(6) if point[f"fast{n}"])
    both = 0.15 if point["fast1"] and point["fast4"] else 0.0
    return 1 - saved - both + {"fp32": 0.3, "fp16": 0.1, "int8": 0.0}[str(point["precision"])]


def block_error(point: Assignment) -> float:
    """Return the excess error of a block; faster ones are less exact."""
    error = sum(0.2 * (6 - n) for n in range(6) if point[f"fast{n}"]) / 2
    error += {"fp32": 0.0, "fp16": 0.3, "int8": 1.0}[str(point["precision"])]
    return max(0.0, error - 1.2)


BLOCKS = Space(
    (
        Choices("precision", ("fp32", "fp16", "int8")),
        *(Choices(f"fast{n}", (False, True)) for n in range(6)),
    )
)

LANDSCAPES = (
    Landscape("session", SESSION, session_latency),
    Landscape("session, noisy", SESSION, session_latency, noise=0.03),
    Landscape("bowl", BOWL, bowl),
    Landscape("stairs", STAIRS, stairs),
    Landscape("accuracy bound", BLOCKS, block_speed, block_error),
)


def near_best(landscape: Landscape, method: Method, seeds: int = 20) -> int:
    """Count the seeds that end within 2 % of the best feasible point after a quarter of the grid, 8 at a time."""
    points = (NumberedSpace(landscape.space).size or 0) // 4
    ends = []
    for seed in range(seeds):
        options = SearchOptions(method, ("minimize",), points=points, seed=seed)
        *_, end = regrets(make_search(landscape.space, options), landscape, points, 8, seed)
        ends.append(end)
    return sum(end < 0.02 for end in ends)


def regrets(search: Search, landscape: Landscape, points: int, batch: int, seed: int) -> Iterator[float]:
    """The true regret of the best measured so far, after each point."""
    scatter = random.Random(seed)
    best: tuple[float, float] = (math.inf, math.inf)
    tried = 0
    while tried < points and (asked := search.ask(min(batch, points - tried))):
        trials = [landscape.trial(point, scatter) for point in asked]
        search.tell(trials)
        tried += len(asked)
        for trial in trials:
            if trial.objectives is not None:
                best = min(best, (trial.objectives[0], landscape.regret(trial.point)))
            yield best[1]
