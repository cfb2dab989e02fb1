"""Search the variants of a model by sweeps: the cheap ones, then also those that take minutes and may still win.

The second sweep reuses all points of the first.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.quantities import counted, parse_duration_ms, quantity
from ndld_flow.recipe.optimize.compose import SEARCH_SHARE, Composer
from ndld_flow.recipe.optimize.variant import Variant
from ndld_flow.records.document import read_document
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import OPTIMIZATION_RECORD, Optimization
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.runner.events import Event, Notice, PointFinished, SweepFinished, SweepStarted
from ndld_flow.runner.listener import Listener
from ndld_flow.runner.request import Request
from ndld_flow.runner.run_request import run_request
from ndld_flow.store.files import write_text_atomically
from ndld_flow.sweep_search.search import Direction

_REUSE_MS = 5_000.0
"""Least time of a sweep, in which the second one reuses the results of the first."""
_BY_PLACEMENT = 1.5
"""A model with all suitable layers in INT8 becomes at most this much faster if some stay in floats: depthwise layers of
small nets are the extreme case that was measured."""
_BY_INT8 = 4.0
"""Largest gain by INT8: a vector register, or a byte read from memory, has four times as many values as in FP32."""


@dataclass
class Point:
    """A point of the search, as known when it ended or was interrupted."""

    number: int
    variant: Variant
    threads: int | None
    outcome: PointOutcome
    why: str
    latency: Metric | None
    rank: float = 0.0
    objectives: Mapping[str, Metric] = field(default_factory=dict)
    on_front: bool = False
    is_comfortable: bool = True
    """Its errors keep a margin to the conditions."""
    ratio_to_best: tuple[float, float] | None = None
    """95 % interval of its first objective divided by that of the best, if both were measured again; 1 for the best."""

    @property
    def name(self) -> str:
        return name_variant(self.variant.name, self.threads)


def name_variant(name: str, threads: int | None) -> str:
    """Return `INT8, minmax, 2 threads`, or the name alone if the number of threads is not part of the search."""
    return name if threads is None else f"{name}, {counted(threads, 'thread')}"


@dataclass
class Search:
    """The result of the search."""

    points: list[Point] = field(default_factory=list)
    hopeless: dict[str, str] = field(default_factory=dict)
    """Name of a variant that was not tried, because the others show that it cannot win -> the reason."""
    stopped_because: str = ""
    finished: SweepFinished | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.perf_counter)

    def left_ms(self, budget: str, share: float = 1.0) -> float:
        """Return the rest of a share of the time for everything; infinity without a budget."""
        if not budget:
            return float("inf")
        return parse_duration_ms(budget) * share - (time.perf_counter() - self.clock) * 1e3


def run_search(composer: Composer, folder: Path, request: Request, listener: Listener) -> Search:
    """Run the sweeps; return the points of the last, the best first, or those that had finished at Ctrl-C."""
    searching = _Searching(composer, folder / "search.yaml", request, listener)
    try:
        searching.run()
    except KeyboardInterrupt:
        listener(Notice(text="interrupted: concluding with the best so far; Ctrl-C again ends this too", warning=True))
        goal = composer.objectives[0].direction
        points = [searching.interrupted_point(event, goal) for event in searching.seen.values()]
        return replace(searching.search, points=points, stopped_because="Ctrl-C")
    return searching.search


class _Searching:
    """One search."""

    def __init__(self, composer: Composer, recipe: Path, request: Request, listener: Listener) -> None:
        self._composer, self._recipe, self._listener = composer, recipe, listener
        self._request = replace(request, recipe=recipe, output=None)
        self._variants = {variant.name: variant for variant in composer.variants}
        self._order = _learn_order(request.outputs)
        self.search = Search()
        self.seen: dict[int, PointFinished] = {}

    def run(self) -> None:
        """Run one sweep, or two if there are costly variants."""
        costly = [each for each in self._composer.variants if each.costly]
        cheap = [each for each in self._composer.variants if not each.costly]
        if not costly:
            self._sweep(cheap, last=True)
            return
        self._sweep(cheap, last=False)
        left_ms = self.search.left_ms(self._composer.options.budget, SEARCH_SHARE)
        if left_ms <= 0:
            self.search.stopped_because = f"the budget of {self._composer.options.budget} is used up"
            return
        for_latency = [each.name for each in self._composer.objectives] == ["latency"]
        reasons = self.search.hopeless = hopeless(costly, self.search.points, for_latency=for_latency)
        for name, why in reasons.items():
            self._listener(Notice(text=f"{name} is not tried: {why}."))
        self._sweep([*cheap, *(each for each in costly if each.name not in reasons)], last=True)

    def _sweep(self, variants: Sequence[Variant], *, last: bool) -> None:
        """Run a sweep over variants; only the `last` measures its winners again."""
        limit_ms = max(self.search.left_ms(self._composer.options.budget, SEARCH_SHARE), _REUSE_MS)
        text = self._composer.compose_sweep(self._recipe, self._order, variants, limit_ms=limit_ms, last=last)
        write_text_atomically(self._recipe, text)
        finished = run_request(self._request, self._listen)
        assert isinstance(finished, SweepFinished)
        record = read_sweep_record(Path(finished.folder))
        points = sorted(self._points(record), key=lambda point: point.rank)
        if len(points) < len(self.search.points):
            return  # the limit ended it while it reused results
        self.search = replace(self.search, points=points, finished=finished, stopped_because=record.stopped_because)

    def _listen(self, event: Event) -> None:
        """Pass on what is new: the second sweep repeats the points of the first."""
        if isinstance(event, SweepFinished) or (isinstance(event, SweepStarted) and self.seen):
            return
        if isinstance(event, PointFinished):
            known = self.seen.get(event.number)
            self.seen[event.number] = event
            if known is not None and known.values == event.values and not event.again:
                return
        self._listener(event)

    def _points(self, record: SweepRecord) -> Iterator[Point]:
        for point in record.points:
            latest = point.again or point
            measured = zip(self._composer.objectives, latest.objectives, record.objectives, strict=False)
            values = {
                objective.name: Metric(value=value, unit=described.unit)
                for objective, value, described in measured
                if value is not None
            }
            yield Point(
                number=point.number,
                variant=self._variants[str(point.values["variant"])],
                threads=_threads_of(point.values.get("speed.threads")),
                outcome=point.outcome,
                why=point.reason,
                latency=latest.metrics.get("speed.latency.min"),
                rank=float("inf") if point.rank is None else point.rank,
                objectives=values,
                on_front=point.on_front,
                is_comfortable=self._composer.conditions.is_comfortable(point.metrics, "agree"),
                ratio_to_best=_ratio_to_best(point),
            )

    def interrupted_point(self, event: PointFinished, goal: Direction) -> Point:
        """Return a point as its event describes it."""
        latency = event.objectives.get("speed.latency.min")
        first = next(iter(event.objectives.values()), None)
        rank = float("inf") if first is None else first.value if goal == "minimize" else -first.value
        threads = _threads_of(event.values.get("speed.threads"))
        variant = self._variants[str(event.values["variant"])]
        return Point(event.number, variant, threads, event.outcome, event.reason, latency, rank)


def hopeless(costly: Sequence[Variant], points: Sequence[Point], *, for_latency: bool) -> dict[str, str]:
    """Return the names of the variants that cannot win, as the points of the cheap ones show -> the reason."""
    passed = [point for point in points if point.outcome == "passed"]
    right = {point.variant.name: point for point in passed if point.is_comfortable}
    reasons = {}
    for variant in costly:
        equal = next((right[name] for name in variant.unless if name in right), None)
        why = f"{equal.name} is right without exceptions" if equal is not None else ""
        if not why and for_latency:
            why = _too_slow(variant, passed)
        if why:
            reasons[variant.name] = why
    return reasons


def _too_slow(variant: Variant, passed: Sequence[Point]) -> str:
    """Return the reason if the points of the same runtime bound the latency of a variant, and others are faster."""
    here = [point for point in passed if point.variant.runtime == variant.runtime and point.latency is not None]
    fastest = min((point for point in passed if point.latency), key=_ms, default=None)
    if not here or fastest is None:
        return ""
    near = min(here, key=_ms)
    is_quantized = any("made" in point.variant.steps for point in here)
    bound = _BY_PLACEMENT if is_quantized else _BY_INT8
    if _ms(near) <= bound * _ms(fastest):
        return ""
    both = " and ".join(f"{point.name} takes {quantity(_ms(point), 'ms')}" for point in (near, fastest))
    return f"{both}, and it is at most {bound:g} times as fast as the first of these"


def _ms(point: Point) -> float:
    assert point.latency is not None
    return point.latency.value


def _learn_order(outputs: Path) -> list[str]:
    """Return the names of variants in the order of their latencies, relative to the source, in earlier optimizations
    on this machine: what was fast for other models is tried first.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for path in sorted(outputs.glob(f"optimizations/*/{OPTIMIZATION_RECORD}")):
        try:
            record = read_document(Optimization, path)
        except (OSError, ValueError, NdldFlowError):
            continue
        known = {each.name: each.latency.value for each in record.variants if each.latency is not None}
        source = known.pop("source", 0.0)
        for name, latency in known.items() if source else ():
            ratios[name].append(latency / source)
    return sorted(ratios, key=lambda name: statistics.median(ratios[name]))


def _ratio_to_best(point: SweepPoint) -> tuple[float, float] | None:
    again = point.again
    if again is None:
        return None
    if again.standing == "best":
        return 1.0, 1.0
    return (again.ratio_low, again.ratio_high) if again.ratio_low and again.ratio_high else None


def _threads_of(value: object) -> int | None:
    return value if isinstance(value, int) else None
