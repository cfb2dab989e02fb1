"""The page of a sweep: its overview, its points, and the page in the sweep's folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.quantities import apart, count, seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.comparison.verdicts import IntervalPlot, IntervalScale, ratio_text
from ndld_flow.report.encoding import rounded
from ndld_flow.report.measured import Fact, Figure, machine_settings
from ndld_flow.report.noted_failures import page_with_notes
from ndld_flow.report.panels.repeat import command_lines, recipe_text
from ndld_flow.report.render import PageParts, render, write_page
from ndld_flow.report.sweep.collect_effects import ChurnView, EffectsView, Objects, collect_churn, collect_effects
from ndld_flow.report.sweep.dimensions import Curve, CurveLine, Dimension, collect_curves, collect_dimensions
from ndld_flow.report.sweep.outcome import (
    FailureGroup,
    SweepVerdict,
    best_point,
    collect_failures,
    counts_words,
    final,
    link,
    load_words,
    objective_words,
    recipe_lines,
    session_table,
    short_names,
    sweep_verdict,
    value_words,
)
from ndld_flow.report.tables import Table

_SETTINGS = 8
_SHOWN = 5
"""Minimum number of points shown, besides those measured again and the Pareto front."""
_MOST = 10
_TIMES = ("ns", "us", "ms", "s", "1/s")
_APART = 21.0
"""Minimum distance between two labels, in percent of the axis."""
_MARKS = {"best": "improved", "tie": "unchanged", "worse": "regressed", "inconclusive": "inconclusive"}


@dataclass(frozen=True)
class GoalCell:
    """One objective of one point."""

    decides: str
    """Value that ranks the point among those of the same measurement: of the second one if any point has it; empty if
    this one has none."""
    first: str
    """First measurement if there was a second one of any point; otherwise empty."""


@dataclass(frozen=True)
class WinnerView:
    """One of the best points."""

    number: int
    rank: int
    settings: tuple[Fact, ...]
    """The first varied settings."""
    more: int
    """Number of further settings."""
    goals: tuple[GoalCell, ...]
    """One per objective."""
    comparison: str
    """`best`, `tie`, `worse`, `inconclusive`; empty if not measured again."""
    mark: str
    """Verdict that selects the interval's colour."""
    ratio: str
    interval: str
    """`0.99x to 1.02x`; empty without an interval."""
    plot: IntervalPlot | None
    on_front: bool
    tied: bool
    """True if it is within the noise of the best, by the first measurement if there is no second one."""
    lines: str
    """Recipe lines for this point."""
    report: str
    """URL of its own report; empty without one."""


@dataclass(frozen=True)
class WinnersView:
    """The best points on one axis of ratios."""

    rows: tuple[WinnerView, ...]
    ticks: tuple[tuple[float, str], ...]
    measured_again: bool
    once: str
    """The reason why there is no second measurement, or what that means; empty if there is one."""
    objectives: tuple[str, ...]
    """Names of the objectives; ratios are of the first."""
    left_out: int
    """Number of points of the Pareto front, or measured again, that are not shown."""


def collect_winners(record: SweepRecord) -> WinnersView | None:
    """Return the best points; None without ranked points or objectives."""
    ranked = sorted((point for point in record.points if point.rank is not None), key=lambda point: point.rank or 0)
    worth = [point for index, point in enumerate(ranked) if index < _SHOWN or point.again or point.on_front]
    chosen = worth[:_MOST]
    if not chosen or not record.objectives:
        return None
    ratios = [point.again.ratio if point.again else None for point in chosen]
    ends = [*ratios, *(end for point in chosen for end in _ends(point) or ())]
    # Around 1, wider than typical noise.
    scale = IntervalScale.covering([1 / 1.02, 1.02, *(end for end in ends if end is not None and 1e-3 <= end <= 1e3)])
    measured_again = any(point.again for point in chosen)
    return WinnersView(
        rows=tuple(_winner(point, record, scale, measured_again=measured_again) for point in chosen),
        ticks=_fitting_ticks(scale.ticks()),
        measured_again=measured_again,
        once=_once(chosen, record.objectives[0].unit),
        objectives=tuple(short_name(objective.text, 60) for objective in record.objectives),
        left_out=len(worth) - len(chosen),
    )


def _winner(point: SweepPoint, record: SweepRecord, scale: IntervalScale, *, measured_again: bool) -> WinnerView:
    again = point.again
    names = short_names(list(point.values))
    varied = [axis.name for axis in record.axes if len(axis.values) > 1 and axis.name in names]
    shown = varied or list(names)
    ratio = again.ratio if again is not None and again.ratio is not None and math.isfinite(again.ratio) else None
    low, high = _ends(point) or (None, None)
    return WinnerView(
        number=point.number,
        rank=point.rank or 0,
        settings=tuple(Fact(names[name], value_words(point.values[name])) for name in shown[:_SETTINGS]),
        more=max(0, len(shown) - _SETTINGS),
        goals=tuple(
            GoalCell(
                objective_words(decides, objective) if again or not measured_again else "",
                objective_words(first, objective) if measured_again else "",
            )
            for decides, first, objective in zip(final(point), point.objectives, record.objectives, strict=False)
        ),
        comparison=again.verdict if again else "",
        mark=_MARKS[again.verdict] if again else "",
        ratio=ratio_text(ratio) if ratio is not None else "",
        interval=f"{ratio_text(low)} to {ratio_text(high)}" if low is not None and high is not None else "",
        plot=IntervalPlot(*(round(scale.place(end), 2) for end in (low or ratio, ratio, high or ratio, 1.0, 1.0)))
        if ratio is not None and ratio > 0
        else None,
        on_front=point.on_front,
        tied=point.tied,
        lines=recipe_lines(point, record.recipe),
        report=link(point),
    )


def _ends(point: SweepPoint) -> tuple[float, float] | None:
    again = point.again
    if again is None or again.ratio_low is None or again.ratio_high is None:
        return None
    both = (again.ratio_low, again.ratio_high)
    return both if all(math.isfinite(end) and end > 0 for end in both) else None


def _fitting_ticks(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Return the ticks that fit: `same`, and outwards those with enough room."""
    same = next((place for place, text in ticks if text == "same"), 0.0)
    kept: list[tuple[float, str]] = []
    for place, text in sorted(ticks, key=lambda tick: abs(tick[0] - same)):
        if all(abs(place - other) >= _APART for other, _ in kept):
            kept.append((place, text))
    return tuple(sorted(kept))


def _once(points: list[SweepPoint], unit: str) -> str:
    """Return why these points have one measurement only, or what that means; empty if some were measured again."""
    if any(point.again for point in points):
        return ""
    if unit not in _TIMES and not any(point.session for point in points):
        return "The deciding objective is exact, so nothing was measured again."
    return "These points were not measured again: the first is best only by its first measurement."


@dataclass(frozen=True)
class BestView:
    """The recipe lines and command for the best point."""

    number: int
    lines: str
    """Lines for the recipe."""
    command: str
    """Command that repeats the sweep from the store and writes the best point as a separate recipe."""


def objective_text(record: SweepRecord) -> str:
    """Return `minimize speed.latency.min, subject to agree.cosine >= 0.999`."""
    named = [f"{objective.direction} {short_name(objective.text, 100)}" for objective in record.objectives]
    goals = " and ".join(named) or "none, all points were tried"
    where = " and ".join(short_name(constraint, 120) for constraint in record.constraints)
    return f"{goals}, subject to {where}" if where else goals


def _best_view(record: SweepRecord) -> BestView | None:
    best = best_point(record)
    if best is None:
        return None
    words = list(record.command)
    if "--best" in words:
        place = words.index("--best")
        del words[place : place + 2]
    return BestView(
        number=best.number,
        lines=recipe_lines(best, record.recipe),
        command=command_lines(record.directory, [*words, "--best", "BEST.yaml"]),
    )


def _figures(record: SweepRecord) -> list[Figure]:
    best = best_point(record)
    tried = len(record.points)
    excluded = f", {count(record.excluded_count)} excluded in advance" if record.excluded_count else ""
    own = f"{seconds(record.own_s)} of it overhead of ndld-flow"
    each = f", {seconds(record.own_s / tried)} per point" if tried else ""
    verb = "was" if record.steps_reused == 1 else "were"
    there = f", {count(record.steps_reused)} {verb} reused" if record.steps_reused else ""
    figures = [
        Figure("Points tried", count(tried), f"{counts_words(record) or 'none'}{excluded}"),
        Figure("Steps computed", count(record.steps_done), f"{count(record.steps_shared)} shared by points{there}"),
        Figure("Time", seconds(record.wall_s), f"{own}{each}{f'; {load}' if (load := load_words(record)) else ''}"),
        Figure(
            "Ended by",
            short_name(record.stopped_because, 160),
            f"{short_name(record.method, 40).replace('_', ' ')}, seed {record.seed}",
            wordy=True,
        ),
    ]
    if best is None or not record.objectives:
        return figures
    objective = record.objectives[0]
    first = Figure(short_name(objective.text, 60), objective_words(final(best)[0], objective), f"point {best.number}")
    return [first, *figures]


_PLAIN_ROWS = 100


@dataclass(frozen=True)
class PointStepRow:
    """A step of a point."""

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class ConstraintRow:
    """A constraint on a point."""

    gate: str
    passed: bool
    measured: str


@dataclass(frozen=True)
class AgainRow:
    """The second measurement of a point."""

    verdict: str
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PointRow:
    """One point."""

    number: int
    outcome: str
    mark: str
    """`best`, `tie` or `front`; empty for other points."""
    reason: str
    failed_step: str
    report: str
    """Address of its own report."""
    lines: str
    """Its settings as lines of a recipe."""
    rank: int | None
    wall_s: float
    steps: list[PointStepRow]
    constraints: list[ConstraintRow]
    again: AgainRow | None


@dataclass(frozen=True)
class DrawnCurve:
    """One quantity along one axis."""

    axis: str
    dimension: int
    """Position among the dimensions."""
    left_out: int
    log: bool
    lines: Sequence[CurveLine]


@dataclass(frozen=True)
class DrawnSweep:
    """All data of the page."""

    id: str
    name: str
    points: list[PointRow]
    dimensions: Sequence[Dimension]
    curves: list[DrawnCurve]


def sweep_data(record: SweepRecord, dimensions: Sequence[Dimension], curves: Sequence[Curve]) -> DrawnSweep:
    """Return all data of the page; points are in the record's order."""
    places = {id(dimension): index for index, dimension in enumerate(dimensions)}
    return DrawnSweep(
        id=record.id,
        name=short_name(record.recipe_name, 100),
        points=[_point(point, record) for point in record.points],
        dimensions=dimensions,
        curves=[DrawnCurve(each.axis, places[id(each.y)], each.left_out, each.log, each.lines) for each in curves],
    )


def _point(point: SweepPoint, record: SweepRecord) -> PointRow:
    again = point.again
    return PointRow(
        number=point.number,
        outcome=point.outcome,
        mark="best" if point.number == record.best else "tie" if point.tied else "front" if point.on_front else "",
        reason=short_name(point.reason, 600),
        failed_step=short_name(point.failed_step, 80),
        report=link(point),
        lines=recipe_lines(point, record.recipe),
        rank=point.rank,
        wall_s=rounded(point.wall_s),
        steps=[
            PointStepRow(short_name(step.name, 80), step.outcome, short_name(step.reason, 160)) for step in point.steps
        ],
        constraints=[
            ConstraintRow(
                short_name(gate.gate, 160), gate.passed, apart((gate.left, gate.right), short_name(gate.unit, 20))[0]
            )
            for gate in point.constraints
        ],
        again=AgainRow(
            again.verdict,
            *(None if end is None else rounded(end) for end in (again.ratio, again.ratio_low, again.ratio_high)),
        )
        if again
        else None,
    )


@dataclass(frozen=True)
class PlainRow:
    """A point, for paper and pages without a script."""

    number: int
    report: str
    values: tuple[str, ...]
    objectives: tuple[str, ...]
    outcome: str
    reason: str
    rank: str


@dataclass(frozen=True)
class SweepPage:
    """The page of one sweep."""

    objective: str
    verdict: SweepVerdict
    figures: tuple[Figure, ...]
    best: BestView | None
    machine: str
    """Description on one line."""
    axes: tuple[str, ...]
    objectives: tuple[str, ...]
    plain: tuple[PlainRow, ...]
    """The best points first, up to a maximum."""
    winners: WinnersView | None
    has_pictures: bool
    """True if there are two measured points to draw."""
    curves: tuple[Curve, ...]
    effects: tuple[EffectsView, ...]
    churn: tuple[ChurnView, ...]
    failures: tuple[FailureGroup, ...]
    sessions: Table
    record: SweepRecord
    command: str
    recipe: str
    data: DrawnSweep

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        present = {
            "winners": self.winners is not None,
            "trade": self.has_pictures,
            "parallel": self.has_pictures,
            "points": bool(self.record.points),
            "effects": bool(self.effects),
            "curves": bool(self.curves),
            "churn": bool(self.churn),
            "failures": bool(self.failures),
            "sessions": bool(self.sessions.rows),
            "repeat": True,
        }
        titles = {"winners": "Best", "trade": "Trade-off"}
        return tuple((name, titles.get(name, name.capitalize())) for name, there in present.items() if there)


def collect_page(record: SweepRecord, churn: Sequence[ChurnView] = ()) -> SweepPage:
    """Convert a record to page data; `churn` describes engines that were built several times."""
    dimensions = collect_dimensions(record)
    curves = collect_curves(record, dimensions)
    measured = [point for point in record.points if point.metrics]
    ordered = sorted(record.points, key=lambda point: (point.rank is None, point.rank or 0, point.number))
    settings = {setting.name: setting.value for setting in machine_settings(record.machine)}
    return SweepPage(
        objective=objective_text(record),
        verdict=sweep_verdict(record),
        figures=tuple(_figures(record)),
        best=_best_view(record),
        machine=", ".join(settings[name] for name in ("cpu", "gpu", "system") if name in settings),
        axes=tuple(short_names([axis.name for axis in record.axes]).values()),
        objectives=tuple(short_name(objective.text, 60) for objective in record.objectives),
        plain=tuple(
            PlainRow(
                number=point.number,
                report=link(point),
                values=tuple(value_words(point.values.get(axis.name)) for axis in record.axes),
                objectives=tuple(map(objective_words, final(point), record.objectives)),
                outcome=point.outcome,
                reason=short_name(point.reason, 200),
                rank=str(point.rank or ""),
            )
            for point in ordered[:_PLAIN_ROWS]
        ),
        winners=collect_winners(record),
        has_pictures=len(measured) > 1,
        curves=curves,
        effects=collect_effects(record),
        churn=tuple(churn),
        failures=collect_failures(record),
        sessions=session_table(record),
        record=record,
        command=command_lines(record.directory, record.command),
        recipe=recipe_text(record.recipe),
        data=sweep_data(record, dimensions, curves),
    )


SWEEP_PAGE = PageParts("sweep", "charts tables profile compare sweep sweep_churn")


def draw_sweep(record: SweepRecord, folder: Path, objects: Objects | None = None, notes: Sequence[str] = ()) -> Path:
    """Write `report.html` into a sweep's folder atomically and return its path.

    `objects` locates artifacts in the store while the folder is at a temporary path with invalid links; `notes` are on
    files that are missing. Raises an `OutputsError` if it cannot be written.
    """
    text = page_with_notes(
        "The report",
        lambda: render(SWEEP_PAGE, collect_page(record, collect_churn(record, folder, objects)), notes=notes),
    )
    return write_page(folder / "report.html", text, "ndld-flow report")
