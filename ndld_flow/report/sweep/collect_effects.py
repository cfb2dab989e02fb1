"""Collect the effect of each setting on each objective, and engines that were built several times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import MINUS, count, counted, quantity, share
from ndld_flow.base.text import short_name, shortened
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.profiles.compare.tactic_churn import Rebuild, find_churn, request_of
from ndld_flow.records.build import Build
from ndld_flow.records.comparison import ChangedLayer, TacticChurn
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments, read_run_record
from ndld_flow.records.sweep import SweepObjective, SweepPoint, SweepRecord
from ndld_flow.report.sweep.outcome import link, objective_words, value_words
from ndld_flow.report.tables import Column, Table
from ndld_flow.sweep_search.ranking import Effect, Level, Observed, main_effects

Objects = Callable[[str], Path]
"""Digest of an artifact -> its folder."""

_LAYERS_SHOWN = 100
_BUILDS_SHOWN = 12
_NUMBERED = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TITLES = {"engine_bytes": "Engine", "build_s": "Build", "layers": "Layers", "latency.median": "Latency"}
CHANGES = {"layers": "different fusion", "format": "different format", "tactic": "different tactic"}
"""Change -> description."""


@dataclass(frozen=True)
class Outcome:
    """A layer in one build."""

    mark: str
    """`A`, `B`, ...: equal for equal outcomes of this layer; empty if the build has no such layer."""
    text: str
    """Tactic, formats, or names of layers."""

    @property
    def shown(self) -> str:
        """The text with its middle left out, because tactics differ at their ends."""
        return shortened(self.text, 32)


@dataclass(frozen=True)
class ChurnRow:
    """One layer that differs between builds."""

    name: str
    type: str
    node_count: int
    change: str
    time: str
    """Share of all layers' time; empty if unknown."""
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class ChurnView:
    """One engine that was built several times."""

    step: str
    summary: str
    """Summary in a sentence."""
    labels: tuple[str, ...]
    """One per build: `attempt 2`."""
    spreads: Table
    """The figures of all builds, and the largest difference of each relative to its median."""
    rows: tuple[ChurnRow, ...]
    left_out: int
    """Number of changed layers that are not shown."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _BuiltPoint:
    """One build of a step."""

    point: int
    attempt: int
    rebuild: Rebuild


def collect_churn(record: SweepRecord, folder: Path, objects: Objects | None = None) -> tuple[ChurnView, ...]:
    """Return the engines of a sweep over `attempt`, read from the folders of its points; empty for other sweeps.

    `objects` locates artifacts in the store, for a sweep's folder whose links are not valid yet.
    """
    if not any(key.endswith(".attempt") for axis in record.axes for key in axis.keys):
        return ()
    alike: dict[tuple[object, ...], list[_BuiltPoint]] = defaultdict(list)
    known: set[str] = set()
    for point in record.points:
        for step, key, build in _builds_of(point, folder, objects):
            if key not in known:  # points with the same engine count once
                known.add(key)
                alike[step, *request_of(build.rebuild.build)].append(build)
    return tuple(_view(str(asked[0]), build) for asked, build in alike.items() if len(build) > 1)


def _builds_of(point: SweepPoint, folder: Path, objects: Objects | None) -> Iterator[tuple[str, str, _BuiltPoint]]:
    """Yield step, key and build of each engine of a point; nothing if they cannot be read, which the point's own report
    states.
    """
    if not link(point):
        return
    try:
        run = read_run_record(folder / point.folder)
    except RequestError:
        return
    documents = RunDocuments(run, folder / point.folder, objects)
    keys = {step.name: step.key for step in point.steps}
    for step, build in documents.of(Build).items():
        asked = build.options.get("attempt")
        attempt = asked if isinstance(asked, int) else 1
        measured = next(
            (profile for profile in documents.of(Profile).values() if profile.options.get("engine") == step), None
        )
        built = _BuiltPoint(point.number, attempt, Rebuild(f"attempt {attempt}", build, measured))
        yield step, keys.get(step, ""), built


def _view(step: str, builds: Sequence[_BuiltPoint]) -> ChurnView:
    ordered = sorted(builds, key=lambda built: (built.attempt, built.point))[:_BUILDS_SHOWN]
    churn = find_churn([built.rebuild for built in ordered])
    labels = tuple(short_name(build.label, 40) for build in churn.builds)
    return ChurnView(
        step=short_name(step, 100),
        summary=_summary(churn),
        labels=labels,
        spreads=Table(
            (
                Column("Build"),
                *(
                    Column(f"{label}, point {built.point}", "number")
                    for label, built in zip(labels, ordered, strict=True)
                ),
                Column(f"Largest {MINUS} smallest", "number", share),
            ),
            tuple(
                (_TITLES[each.metric], *(quantity(value, each.unit) for value in each.values), each.relative)
                for each in churn.spreads
            ),
        ),
        rows=tuple(map(_row, churn.changed[:_LAYERS_SHOWN])),
        left_out=max(0, len(churn.changed) - _LAYERS_SHOWN),
        notes=tuple(_notes(churn, len(builds))),
    )


def _summary(churn: TacticChurn) -> str:
    """Return `3 builds, 2 different engines: 5 of 82 layers differ (6.1 %), 12 % of the time of all layers`."""
    builds, engines = len(churn.builds), churn.different_engines
    alike = "the same engine to the byte" if engines == 1 else f"{engines} different engines"
    if not churn.changed:
        return f"{builds} builds, {alike}: no difference in {counted(churn.row_count, 'layer')}"
    verb = "differs" if len(churn.changed) == 1 else "differ"
    came_out = f"{count(len(churn.changed))} of {counted(churn.row_count, 'layer')} {verb}"
    time = "" if churn.time_share is None else f", {share(churn.time_share)} of the time of all layers"
    return f"{builds} builds, {alike}: {came_out} ({share(churn.layer_share)}){time}"


def _row(layer: ChangedLayer) -> ChurnRow:
    different = list(dict.fromkeys(filter(None, layer.built)))
    marks = {text: _NUMBERED[min(index, len(_NUMBERED) - 1)] for index, text in enumerate(different)}
    return ChurnRow(
        name=short_name(layer.name),
        type=short_name(layer.type, 60),
        node_count=len(layer.onnx_nodes),
        change=CHANGES[layer.change],
        time="" if layer.time_share is None else share(layer.time_share),
        outcomes=tuple(Outcome(marks.get(text, ""), short_name(text, 400)) for text in layer.built),
    )


def _notes(churn: TacticChurn, total: int) -> Iterator[str]:
    if total > len(churn.builds):
        yield f"The first {len(churn.builds)} of {total} builds."
    cached = [short_name(build.label, 40) for build in churn.builds if build.read_timings]
    if cached:
        took = f"{', '.join(cached)} took timings from this machine's cache"
        yield f"{took} and repeat the tactics of earlier builds; the others timed all tactics again."
    if churn.basis == "engines as measured":
        yield "Layers are those of the engines at run time."
    if not churn.tells_tactics:
        yield "Tactics are not recorded: only differences in layers and formats are visible."


_OBJECTIVES, _AXES = 3, 12
_DOTS = 12
"""Maximum number of dots; a value with more points only shows its interval."""
_FEW = 6
"""Minimum number of values for a 95 % interval; with fewer, the range is shown."""


@dataclass(frozen=True)
class LevelView:
    """One value of an axis. Positions are in percent of the scale."""

    label: str
    count: int
    median: str
    interval: str
    """`3.1 ms to 3.4 ms`; empty for a single point."""
    is_range: bool
    """True if the interval is the range of all, because there are too few for a 95 % interval."""
    low: float
    point: float
    high: float
    dots: tuple[float, ...]
    is_best: bool
    """True if it is the best, with an interval apart from that of the worst."""


@dataclass(frozen=True)
class EffectView:
    """One axis."""

    axis: str
    size: str
    """`63.9 %`"""
    paired: bool
    levels: tuple[LevelView, ...]


@dataclass(frozen=True)
class EffectsView:
    """All axes for one objective."""

    objective: str
    effects: tuple[EffectView, ...]
    ticks: tuple[tuple[float, str], ...]
    paired: bool
    """True if all effects are paired."""


def collect_effects(record: SweepRecord) -> tuple[EffectsView, ...]:
    """Return one view per objective with points for at least two values of an axis."""
    axes = {axis.name: axis.values for axis in record.axes}
    views = []
    for index, objective in enumerate(record.objectives[:_OBJECTIVES]):
        effects = main_effects(axes, _observed(record, index))[:_AXES]
        if effects:
            observed = [level.observed for effect in effects for level in effect.levels]
            ends = [end for values in observed for end in (values if len(values) <= _DOTS else median_interval(values))]
            scale = _Scale(min(ends), max(ends))
            views.append(
                EffectsView(
                    objective=short_name(objective.text, 100),
                    effects=tuple(_effect(effect, objective, scale) for effect in effects),
                    ticks=scale.ticks(objective),
                    paired=all(effect.paired for effect in effects),
                )
            )
    return tuple(views)


def _observed(record: SweepRecord, index: int) -> list[Observed]:
    """Return the first measurements of all measured points, including refused ones: all under the same conditions."""
    values = ((point, point.objectives[index : index + 1]) for point in record.points)
    return [
        Observed(point.values, value[0])
        for point, value in values
        if value and value[0] is not None and math.isfinite(value[0]) and len(point.values) == len(record.axes)
    ]


def _effect(effect: Effect, objective: SweepObjective, scale: _Scale) -> EffectView:
    ordered = sorted(effect.levels, key=lambda level: level.median)
    first, last = (ordered[0], ordered[-1]) if objective.direction == "minimize" else (ordered[-1], ordered[0])
    best = None  # the best median; none if its interval overlaps that of the worst
    if min(len(first.observed), len(last.observed)) >= _FEW:
        (low, high), (worst_low, worst_high) = median_interval(first.observed), median_interval(last.observed)
        best = first.median if high < worst_low or worst_high < low else None
    return EffectView(
        axis=short_name(effect.axis, 100),
        size=share(effect.size),
        paired=effect.paired,
        levels=tuple(_level(level, objective, scale, best) for level in effect.levels),
    )


def _level(level: Level, objective: SweepObjective, scale: _Scale, best: float | None) -> LevelView:
    low, high = median_interval(level.observed)
    ends = f"{objective_words(low, objective)} to {objective_words(high, objective)}"
    return LevelView(
        label=" to ".join(value_words(value) for value in level.values),
        count=len(level.observed),
        median=objective_words(level.median, objective),
        interval=ends if len(level.observed) > 1 else "",
        is_range=len(level.observed) < _FEW,
        low=scale.place(low),
        point=scale.place(level.median),
        high=scale.place(high),
        dots=tuple(scale.place(value) for value in level.observed) if len(level.observed) <= _DOTS else (),
        is_best=level.median == best,
    )


@dataclass(frozen=True)
class _Scale:
    """A linear axis with a margin."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return a position in percent."""
        span = self.high - self.low
        return round(4 + 92 * (value - self.low) / span, 2) if span > 0 else 50.0

    def ticks(self, objective: SweepObjective) -> tuple[tuple[float, str], ...]:
        """Return (position, text) of about three round numbers."""
        span = self.high - self.low
        if span <= 0:
            return ((50.0, objective_words(self.low, objective)),)
        rough = span / 3
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step)
        places = [first + index for index in range(12) if (first + index) * step <= self.high]
        return tuple((self.place(place * step), objective_words(place * step, objective)) for place in places)
