"""The page of a recipe's history: what changed, when, by how much, and why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ndld_flow.base.quantities import MINUS, apart, counted, quantity, ratio_change
from ndld_flow.base.text import short_name
from ndld_flow.history.series import ANY_MACHINE
from ndld_flow.records.history import HistoryStep, MetricHistory, MetricSeries
from ndld_flow.report.encoding import rounded
from ndld_flow.report.render import PageParts, render, write_page

_MOST_POINTS = 400_000
"""Number of points of a page, of which each takes about 5 bytes."""
_MOST_CHANGES = 200
_MANY = 12
"""Number of series from which those without a change are folded."""
_DIGITS = 10
"""Digits of a commit that are shown."""


@dataclass(frozen=True)
class ChangeView:
    """One step of one series."""

    series: int
    """Position among the drawn series; -1 if it is not drawn."""
    step: HistoryStep
    metric: str
    about: str
    change: str
    amount: float
    """Size of the change, relative if it can be."""
    values: str
    why: str
    is_main: bool


@dataclass(frozen=True)
class SeriesView:
    """One series in the table of all metrics."""

    series: int
    """Position among the drawn series; -1 if it is not drawn."""
    record: MetricSeries
    about: str
    trend: str
    is_main: bool


@dataclass(frozen=True)
class DrawnRun:
    """A run of the chart."""

    id: str
    started_s: int
    """Seconds since 1970."""
    commit: str


@dataclass(frozen=True)
class DrawnStep:
    """A step of a series."""

    place: int
    """Position of the first point after it."""
    before: float
    after: float
    change: str
    """`+5.1 %`."""
    detail: str
    """The values, the interval and the reason, a line each."""
    verdict: str
    accepted: str
    """The note; empty if it is not accepted."""


@dataclass(frozen=True)
class DrawnSeries:
    """The measurements of one metric; each list has an item for each point."""

    metric: str
    about: str
    """The kind of machine and the runtime."""
    unit: str
    run: list[int]
    """Positions among the runs."""
    value: list[float]
    shown_by: list[int]
    """Number of runs with this measurement."""
    doubt: list[str]
    level: float | None
    """Median since the last step."""
    least_change: float
    """The smallest relative change that is a step."""
    limit: float | None
    """The bound of a gate."""
    remark: str
    """The reason why nothing can be concluded; empty if something can."""
    steps: list[DrawnStep]


@dataclass(frozen=True)
class HistoryData:
    """Data of the script."""

    runs: list[DrawnRun]
    """The oldest first."""
    series: list[DrawnSeries]
    first: int
    """Position of the series that is shown at first."""


@dataclass(frozen=True)
class HistoryPage:
    """The page of one history."""

    recipe: str
    tone: str
    word: str
    sentence: str
    why: str
    meta: str
    changes: tuple[tuple[ChangeView, ...], ...]
    """Those of one run with one attribution are together."""
    changes_left_out: int
    series: tuple[SeriesView, ...]
    left_out: int
    """Number of series that are not drawn."""
    data: HistoryData

    @property
    def shown(self) -> tuple[SeriesView, ...]:
        """The main series, and those that have changed; all if there are few."""
        shown = tuple(row for row in self.series if row.is_main or row.record.steps or row.trend)
        return shown if shown and len(self.series) > _MANY else self.series

    @property
    def folded(self) -> tuple[SeriesView, ...]:
        """The other series."""
        shown = set(self.shown)
        return tuple(row for row in self.series if row not in shown)

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections."""
        return (("chart", "Chart"), ("changes", "Changes"), ("metrics", "Metrics"))


def collect_history(history: MetricHistory) -> HistoryPage:
    """Convert a history to page data: series of main metrics first."""
    ordered = sorted(history.series, key=lambda each: each.metric not in history.main)
    points = list(accumulate(len(each.points) for each in ordered))
    drawn = sum(count <= _MOST_POINTS for count in points)
    changes = sorted(
        _changes(ordered, drawn, history.main),
        key=lambda change: (
            change.step.started_at,
            change.is_main,
            change.step.verdict == "regressed",
            change.step.verdict != "changed",
            change.amount,
        ),
        reverse=True,
    )
    groups: dict[tuple[str, str], list[ChangeView]] = defaultdict(list)
    for change in changes[:_MOST_CHANGES]:
        groups[change.step.run, change.why].append(change)
    # The newest regression that nobody accepted and nothing has followed; else the newest change.
    last = {index: series.steps[-1].place for index, series in enumerate(ordered) if series.steps}
    present = [change for change in changes if last.get(change.series) == change.step.place]
    ranked = sorted(present, key=lambda change: (_is_open(change), change.is_main), reverse=True)
    leading = ranked[0] if ranked else None
    tone, word, sentence = _headline(leading, [each for each in ordered if each.metric in history.main] or ordered)
    # The main series with the most measurements.
    counts = [(each.metric in history.main, len(each.points)) for each in ordered[:drawn]]
    longest = counts.index(max(counts)) if counts else 0
    times = [point.started_at for series in history.series for point in (series.points[0], series.points[-1])]
    days = dict.fromkeys(f"{time:%d %b %Y}" for time in (min(times), max(times))) if times else ()
    period = f", {' to '.join(days)}" if days else ""
    shown, every = len({series.metric for series in history.series}), counted(len(history.metrics), "metric")
    of = f"{shown} of {every}" if shown < len(history.metrics) else every
    unreadable = f"; {counted(len(history.unreadable), 'run')} cannot be read" if history.unreadable else ""
    return HistoryPage(
        recipe=short_name(history.recipe, 100),
        tone=tone,
        word=word,
        sentence=sentence,
        why=leading.why if leading else "",
        meta=f"{counted(history.run_count, 'run')}{period}, {of}{unreadable}",
        changes=tuple(map(tuple, groups.values())),
        changes_left_out=max(len(changes) - _MOST_CHANGES, 0),
        series=tuple(_view(each, index if index < drawn else -1, history.main) for index, each in enumerate(ordered)),
        left_out=len(ordered) - drawn,
        data=_data_of(ordered[:drawn], max(leading.series, 0) if leading else longest),
    )


def _changes(ordered: Sequence[MetricSeries], drawn: int, main: Sequence[str]) -> Iterator[ChangeView]:
    for index, series in enumerate(ordered):
        for step in series.steps:
            yield ChangeView(
                series=index if index < drawn else -1,
                step=step,
                metric=short_name(series.metric),
                about=_about(series),
                change=_change(series, step),
                amount=abs(math.log(step.ratio)) if step.ratio else abs(step.after - step.before),
                values=" → ".join(apart((step.before, step.after), series.unit)),
                why=short_name(step.why, 600).replace("->", "→"),
                is_main=series.metric in main,
            )


def _is_open(change: ChangeView) -> bool:
    return change.step.verdict == "regressed" and change.step.accepted is None


def _headline(leading: ChangeView | None, ordered: Sequence[MetricSeries]) -> tuple[str, str, str]:
    """Return tone, first word and sentence."""
    if leading is None:
        most = max((len(each.points) for each in ordered), default=0)
        remark = next((each.remark for each in ordered if each.remark and len(each.points) == most), "")
        if remark:
            return "inconclusive", "Undecided", remark
        return "passed", "No change", f"no metric has changed its level in {counted(most, 'measurement')}"
    started_at = leading.step.started_at
    when = f"{started_at.day} {started_at:%b %Y, %H:%M} UTC"
    sentence = f"{leading.metric} {leading.change} ({leading.values}) on {when}"
    if _is_open(leading):
        return "failed", "Regressed", sentence
    words = {"improved": "Improved", "regressed": "Accepted", "changed": "Changed"}
    return "passed", words[leading.step.verdict], sentence


def _about(series: MetricSeries) -> str:
    machine = "" if series.machine == ANY_MACHINE else series.machine
    return short_name("; ".join(filter(None, (machine, series.settings))), 240)


def _change(series: MetricSeries, step: HistoryStep) -> str:
    if step.ratio is not None and (text := ratio_change(step.ratio)) != "±0 %":
        return text
    return f"{'+' if step.after > step.before else MINUS}{quantity(abs(step.after - step.before), series.unit)}"


def _view(series: MetricSeries, place: int, main: Sequence[str]) -> SeriesView:
    trend = ""
    if series.trend is not None:
        relative = min(point.value for point in series.points) > 0
        amount = ratio_change(1 + series.trend.change) if relative else quantity(series.trend.change, series.unit)
        trend = f"{amount} over {counted(series.trend.points, 'measurement')}"
    return SeriesView(series=place, record=series, about=_about(series), trend=trend, is_main=series.metric in main)


def _data_of(drawn: Sequence[MetricSeries], first: int) -> HistoryData:
    runs = {point.run: point for series in drawn for point in series.points}
    ordered = sorted(runs.values(), key=lambda point: (point.started_at, point.run))
    places = {point.run: index for index, point in enumerate(ordered)}
    return HistoryData(
        runs=[DrawnRun(point.run, int(point.started_at.timestamp()), point.commit[:_DIGITS]) for point in ordered],
        series=[
            DrawnSeries(
                metric=short_name(series.metric),
                about=_about(series),
                unit=short_name(series.unit, 20),
                run=[places[point.run] for point in series.points],
                value=[rounded(point.value, 6) for point in series.points],
                shown_by=[point.runs for point in series.points],
                doubt=[short_name(point.doubt, 200) for point in series.points],
                level=series.level,
                least_change=series.least_change,
                limit=series.limit,
                remark=short_name(series.remark, 200),
                steps=[_drawn_step(series, step) for step in series.steps],
            )
            for series in drawn
        ],
        first=first,
    )


def _drawn_step(series: MetricSeries, step: HistoryStep) -> DrawnStep:
    lines = [" → ".join(apart((step.before, step.after), series.unit))]
    if step.ratio is not None and not series.exact:
        lines.append(f"95 %: {ratio_change(step.low)} to {ratio_change(step.high)}")
    lines.append(short_name(step.why, 300).replace("->", "→"))
    accepted = short_name(step.accepted.note, 300) if step.accepted else ""
    return DrawnStep(
        step.place, step.before, step.after, _change(series, step), "\n".join(lines), step.verdict, accepted
    )


HISTORY_PAGE = PageParts("history", "charts tables history")


def draw_history(history: MetricHistory, path: Path) -> Path:
    """Write the page of a history atomically and return its path. Raises an `OutputsError` if it cannot be written."""
    return write_page(path, render(HISTORY_PAGE, collect_history(history)), "ndld-flow history")
