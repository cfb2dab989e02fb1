"""Export a sweep: points for spreadsheets, a summary for pull requests, charts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.quantities import counted, seconds
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.exports.github_markdown import SIGNS, code, details, prose, table
from ndld_flow.report.exports.pull_requests import HEADING, that_fit
from ndld_flow.report.exports.spreadsheets import csv_text
from ndld_flow.report.noted_failures import noting
from ndld_flow.report.render import write_page
from ndld_flow.report.sweep.collect_effects import EffectsView, collect_effects
from ndld_flow.report.sweep.collect_winners import WinnersView, WinnerView, collect_winners
from ndld_flow.report.sweep.outcome import collect_failures, counts_words, sweep_verdict
from ndld_flow.report.sweep.page import objective_text
from ndld_flow.report.sweep.points import points_words
from ndld_flow.report.tables import Value
from ndld_flow.report.value_text import value_text


def points_csv(record: SweepRecord) -> str:
    """Return one line per point, in the order of trials: settings, first and second measurement, all metrics."""
    head, rows = point_rows(record)
    return csv_text([head, *rows])


def point_rows(record: SweepRecord) -> tuple[list[str], list[list[Value]]]:
    """Return the titles and the cells of `points_csv`."""
    units = {name: metric.unit for point in record.points for name, metric in point.metrics.items()}
    goals = [_headed(objective.text, objective.unit) for objective in record.objectives]
    head = [
        "point",
        "outcome",
        "rank",
        "tied",
        "on_front",
        *(axis.name for axis in record.axes),
        *goals,
        *(f"{goal} again" for goal in goals),
        "verdict",
        "ratio",
        "ratio_low",
        "ratio_high",
        "failed_step",
        "reason",
        "own_s",
        "folder",
        *(_headed(name, unit) for name, unit in units.items()),
    ]
    return head, [_row(point, record, list(units)) for point in record.points]


def _row(point: SweepPoint, record: SweepRecord, metrics: list[str]) -> list[Value]:
    goals = len(record.objectives)
    again = point.again
    values = [point.values.get(axis.name) for axis in record.axes]
    return [
        point.number,
        point.outcome,
        point.rank,
        int(point.tied),
        int(point.on_front),
        *(
            value if isinstance(value, int | float) and not isinstance(value, bool) else value_text(value)
            for value in values
        ),
        *_filled(point.objectives, goals),
        *_filled(again.objectives if again else (), goals),
        again.verdict if again else None,
        *((again.ratio, again.ratio_low, again.ratio_high) if again else (None, None, None)),
        point.failed_step,
        point.reason,
        point.wall_s,
        point.folder,
        *(point.metrics[name].value if name in point.metrics else None for name in metrics),
    ]


def _filled(values: tuple[float | None, ...], count: int) -> list[float | None]:
    return [*values, *[None] * count][:count]


def _headed(name: str, unit: str) -> str:
    return f"{name} {unit}" if unit else name


_MOST_EFFECTS = 8


def sweep_markdown(record: SweepRecord, *, has_picture: bool = False) -> str:
    """Return Markdown for a pull request's comment or a job's summary."""
    return "\n".join(that_fit(sweep_parts(record, has_picture=has_picture)))


def sweep_parts(record: SweepRecord, *, has_picture: bool = False) -> Iterator[str]:
    """Yield the parts of a sweep's Markdown, its verdict first; its picture is next to it."""
    winners = collect_winners(record)
    verdict = sweep_verdict(record)
    sign = SIGNS[verdict.outcome]
    yield f"{HEADING}{sign} {code(record.recipe_name)}: {prose(verdict.sentence, 900)}\n"
    goals = prose(objective_text(record), 600)
    tried = f"{counted(len(record.points), 'point')} tried: {counts_words(record) or 'none'}"
    took = f"{seconds(record.wall_s)}, {seconds(record.own_s)} of it overhead of ndld-flow"
    yield f"Objective: {goals}. {tried}; {took}; {prose(record.stopped_because)}.\n"
    yield _winners(winners) if winners else ""
    yield f"![points]({PICTURE})\n" if has_picture else ""
    yield from map(_effects, collect_effects(record))
    groups = collect_failures(record)
    rows = [[group.outcome, code(group.step), prose(group.reason), points_words(group.points)] for group in groups]
    count = sum(len(group.points) for group in groups)
    summary = f"{counted(count, 'point')} did not pass"
    yield details(summary, table(["Outcome", "Step", "Reason", "Points"], rows)) if rows else ""


def _winners(view: WinnersView) -> str:
    head = ["Rank", "Point", "Settings", *(code(name) for name in view.objectives)]
    numbers = list(range(3, 3 + len(view.objectives)))
    if view.measured_again:
        head += ["Verdict", f"Ratio of {code(view.objectives[0])}"]
    rows = [_winner(row, view) for row in view.rows]
    # No line can end a code block: each begins with a key, and YAML does not break values.
    lines = "\n".join(f"Point {row.number}:\n\n```yaml\n{row.lines}\n```\n" for row in view.rows[:3])
    once = f"{prose(view.once)}\n\n" if view.once else ""
    return f"{once}{table(head, rows, numbers)}\n{details('For the recipe', lines)}"


def _winner(winner: WinnerView, view: WinnersView) -> list[str]:
    settings = ", ".join(f"{prose(setting.name, 60)} {code(setting.value)}" for setting in winner.settings)
    settings += f" and {winner.more} more" if winner.more else ""
    goals = [
        prose(", ".join(filter(None, [goal.decides, f"first {goal.first}" if goal.first else ""])))
        for goal in winner.goals
    ]
    row = [str(winner.rank), str(winner.number), settings, *goals]
    if view.measured_again:
        ratio = f"{winner.ratio} ({winner.interval})" if winner.interval else winner.ratio
        row += [
            winner.comparison or ("not measured again, tie at first" if winner.tied else "not measured again"),
            ratio,
        ]
    return row


def _effects(view: EffectsView) -> str:
    rows = []
    for effect in view.effects[:_MOST_EFFECTS]:
        levels = [f"{code(level.label)} {prose(level.median)} (n {level.count})" for level in effect.levels]
        rows.append([code(effect.axis), effect.size, "<br>".join(levels)])
    how = "otherwise equal points" if view.paired else "all points with the value, other settings confounded"
    how += ", as first measured"
    head = ["Setting", "Effect", f"Median of {code(view.objective)}, {how}"]
    return details(f"Effect of each setting on {code(view.objective)}", table(head, rows, (1,)))


POINTS, SUMMARY, PICTURE = "points.csv", "summary.md", "sweep.png"


def write_sweep_exports(record: SweepRecord, folder: Path) -> list[str]:
    """Write `points.csv`, `summary.md` and its picture into a sweep's folder; return notes on those that fail.

    Raises an `OutputsError` if they cannot be written.
    """
    # Imported lazily: matplotlib takes half a second.
    from ndld_flow.report.exports.sweep_picture import sweep_picture

    again, picture, notes = "ndld-flow report", None, list[str]()
    with noting(PICTURE, notes):
        picture = sweep_picture(record, folder / PICTURE) if EXTRAS["plots"].is_installed else None
    with noting(POINTS, notes):
        write_page(folder / POINTS, points_csv(record), again)
    with noting(SUMMARY, notes):
        write_page(folder / SUMMARY, sweep_markdown(record, has_picture=picture is not None), again)
    return notes
