"""The page of a sweep: its overview, its points, and the page in the sweep's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.quantities import apart, count, seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.encoding import rounded
from ndld_flow.report.noted_failures import page_with_notes
from ndld_flow.report.panels.repeat import command_lines, recipe_text
from ndld_flow.report.render import PageParts, render, write_page
from ndld_flow.report.sweep.collect_churn import ChurnView, Objects, collect_churn
from ndld_flow.report.sweep.collect_effects import EffectsView, collect_effects
from ndld_flow.report.sweep.collect_winners import WinnersView, collect_winners
from ndld_flow.report.sweep.dimensions import Curve, CurveLine, Dimension, collect_curves, collect_dimensions
from ndld_flow.report.sweep.outcome import (
    FailureGroup,
    SweepVerdict,
    best_point,
    collect_failures,
    counts_words,
    load_words,
    session_table,
    sweep_verdict,
)
from ndld_flow.report.sweep.points import final, link, objective_words, recipe_lines, short_names, value_words
from ndld_flow.report.tables import Table
from ndld_flow.report.value_text import Figure, machine_settings


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
