"""Typed data of a sweep's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.sweep.collect_churn import ChurnView
from ndld_flow.report.sweep.collect_curves import Curve, collect_curves
from ndld_flow.report.sweep.collect_effects import EffectsView, collect_effects
from ndld_flow.report.sweep.collect_head import HeadView, RepeatView, collect_head, collect_repeat
from ndld_flow.report.sweep.collect_outcomes import FailureGroup, SessionView, collect_failures, collect_sessions
from ndld_flow.report.sweep.collect_winners import WinnersView, collect_winners
from ndld_flow.report.sweep.dimensions import collect_dimensions
from ndld_flow.report.sweep.payload import sweep_payload
from ndld_flow.report.sweep.point_words import link, objective_words, short_names, value_words
from ndld_flow.report.sweep.verdict_words import sweep_verdict

_PLAIN_ROWS = 100


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

    head: HeadView
    axes: tuple[str, ...]
    objectives: tuple[str, ...]
    point_count: int
    plain: tuple[PlainRow, ...]
    """The best points first, up to a maximum."""
    winners: WinnersView | None
    has_pictures: bool
    """True if there are two measured points to draw."""
    curves: tuple[Curve, ...]
    effects: tuple[EffectsView, ...]
    searched: bool
    """True if the method concentrates on good regions, so that points are not evenly distributed."""
    churn: tuple[ChurnView, ...]
    failures: tuple[FailureGroup, ...]
    sessions: tuple[SessionView, ...]
    repeat: RepeatView
    payload: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        present = {
            "winners": self.winners is not None,
            "trade": self.has_pictures,
            "parallel": self.has_pictures,
            "points": bool(self.point_count),
            "effects": bool(self.effects),
            "curves": bool(self.curves),
            "churn": bool(self.churn),
            "failures": bool(self.failures),
            "sessions": bool(self.sessions),
            "repeat": True,
        }
        return tuple((name, _TITLES[name]) for name, there in present.items() if there)


_TITLES = {
    "winners": "Best",
    "trade": "Trade-off",
    "parallel": "Parallel",
    "points": "Points",
    "effects": "Effects",
    "curves": "Curves",
    "churn": "Churn",
    "failures": "Failures",
    "sessions": "Sessions",
    "repeat": "Repeat",
}


def collect_page(record: SweepRecord, churn: Sequence[ChurnView] = ()) -> SweepPage:
    """Convert a record to page data; `churn` describes engines that were built several times."""
    dimensions = collect_dimensions(record)
    curves = collect_curves(record, dimensions)
    measured = [point for point in record.points if point.metrics]
    return SweepPage(
        head=collect_head(record, sweep_verdict(record)),
        axes=tuple(short_names([axis.name for axis in record.axes]).values()),
        objectives=tuple(short_name(one.text, 60) for one in record.objectives),
        point_count=len(record.points),
        plain=_plain(record.points, record),
        winners=collect_winners(record),
        has_pictures=len(measured) > 1,
        curves=curves,
        effects=collect_effects(record),
        searched=record.method in ("hill_climb", "tpe"),
        churn=tuple(churn),
        failures=collect_failures(record),
        sessions=collect_sessions(record),
        repeat=collect_repeat(record),
        payload=sweep_payload(record, dimensions, curves),
    )


def _plain(points: Sequence[SweepPoint], record: SweepRecord) -> tuple[PlainRow, ...]:
    ordered = sorted(points, key=lambda point: (point.rank is None, point.rank or 0, point.number))
    return tuple(_plain_row(point, record) for point in ordered[:_PLAIN_ROWS])


def _plain_row(point: SweepPoint, record: SweepRecord) -> PlainRow:
    return PlainRow(
        number=point.number,
        report=link(point),
        values=tuple(value_words(point.values.get(axis.name)) for axis in record.axes),
        objectives=tuple(objective_words(a, b) for a, b in zip(point.objectives, record.objectives, strict=False)),
        outcome=point.outcome,
        reason=short_name(point.reason, 200),
        rank=str(point.rank or ""),
    )
