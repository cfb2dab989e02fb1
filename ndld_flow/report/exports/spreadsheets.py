"""Write tables as CSV (RFC 4180, UTF-8, CRLF) and pandas data frames; export sweeps.

Spreadsheets interpret text that begins with `=`, `+`, `-`, `@`, tab or return as a formula, which can exfiltrate data
(https://owasp.org/www-community/attacks/CSV_Injection). Names are untrusted, so such text in CSV is prefixed with an
apostrophe.
Data frames have the same rows and columns; times are in ms and sizes in bytes unless a column names another unit.
"""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.quantities import counted, finite, seconds
from ndld_flow.base.text import value_text, visible_name
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.history import MetricHistory
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.comparison.verdicts import LayerChange, layer_changes
from ndld_flow.report.exports.pull_requests import HEADING, SIGNS, code, details, prose, table, that_fit
from ndld_flow.report.noted_failures import noting
from ndld_flow.report.render import write_page
from ndld_flow.report.sweep.collect_effects import EffectsView, collect_effects
from ndld_flow.report.sweep.outcome import collect_failures, counts_words, points_words, sweep_verdict
from ndld_flow.report.sweep.page import WinnersView, WinnerView, collect_winners, objective_text
from ndld_flow.report.tables import Value

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""Includes full-width forms, which some spreadsheets accept, and leading blanks."""


class _Row(NamedTuple):
    """A layer with its time, and that as a part of the sum of all layers' medians."""

    layer: Layer
    median_ms: float
    share: float

    @property
    def samples(self) -> list[float]:
        return [sample for sample in self.layer.samples_ms if math.isfinite(sample)]


_TIMES: dict[str, Callable[[_Row], Value]] = {
    "median_ms": lambda row: row.median_ms if row.samples else None,
    "min_ms": lambda row: min(row.samples, default=None),
    "max_ms": lambda row: max(row.samples, default=None),
    "mean_ms": lambda row: statistics.fmean(row.samples) if row.samples else None,
    "share": lambda row: row.share,
}
_OF_LAYERS: dict[str, Callable[[_Row], Value]] = {
    "index": lambda row: row.layer.index,
    "name": lambda row: row.layer.name,
    "type": lambda row: row.layer.type,
    "role": lambda row: row.layer.purpose,
    "provider": lambda row: row.layer.provider,
    "precision": lambda row: row.layer.precision or "unknown",
    "input_precision": lambda row: row.layer.input_precision,
    "output_precision": lambda row: row.layer.output_precision,
    "weights_dtype": lambda row: row.layer.weights_dtype,
    "multiply_unit": lambda row: row.layer.unit or "unknown",
    "precision_basis": lambda row: row.layer.precision_basis,
    "asked_precision": lambda row: row.layer.asked_precision,
    "output_dims": lambda row: "x".join(
        "?" if dim < 0 else str(dim) for tensor in row.layer.outputs[:1] for dim in tensor.shape
    ),
    **_TIMES,
    "macs": lambda row: row.layer.macs,
    "read_bytes": lambda row: row.layer.read_bytes,
    "written_bytes": lambda row: row.layer.written_bytes,
    "weight_bytes": lambda row: row.layer.weight_bytes,
    "tactic": lambda row: row.layer.tactic,
    "stream": lambda row: row.layer.stream,
    "depth": lambda row: row.layer.depth,
    "onnx_nodes": lambda row: ", ".join(row.layer.onnx_nodes),
}
LAYER_COLUMNS, TIME_COLUMNS = tuple(_OF_LAYERS), tuple(_TIMES)
_OF_ENGINES = {name: cell for name, cell in _OF_LAYERS.items() if name not in ("provider", "depth", *_TIMES)}


def engine_layers_csv(label: str, layers: Sequence[Layer]) -> str:
    """Return the layers of an engine that was not run: as `layers_csv`, with formats instead of times."""
    rows = (
        [
            label,
            *(cell(_Row(layer, 0.0, 0.0)) for cell in _OF_ENGINES.values()),
            layer.outputs[0].format if layer.outputs else "",
        ]
        for layer in layers
    )
    return csv_text([("engine", *_OF_ENGINES, "output_format"), *rows])


def layers_csv(profiles: Sequence[tuple[str, Profile]]) -> str:
    """Return all layers of labelled profiles, with times in ms over all passes of the layer pass."""
    rows = ([label, *row] for label, profile in profiles for row in layer_rows(profile))
    return csv_text([("profile", *LAYER_COLUMNS), *rows])


def layer_rows(profile: Profile) -> Iterator[list[Value]]:
    """Yield the cells of every layer, as `LAYER_COLUMNS` names them."""
    medians = profile.layer_times.ms
    total = math.fsum(medians)
    for layer, median in zip(profile.layers, medians, strict=True):
        row = _Row(layer, median, median / total if total else 0.0)
        yield [cell(row) for cell in _OF_LAYERS.values()]


class _Match(NamedTuple):
    """Matched layers of the base and one candidate."""

    profile: str
    labels: tuple[str, str]
    change: LayerChange
    method: str
    confidence: float


_OF_MATCHES: dict[str, Callable[[_Match], Value]] = {
    "profile": lambda match: match.profile,
    "base": lambda match: match.labels[0],
    "candidate": lambda match: match.labels[1],
    "base_layers": lambda match: " + ".join(layer.name for layer in match.change.base),
    "candidate_layers": lambda match: " + ".join(layer.name for layer in match.change.candidate),
    "base_types": lambda match: " + ".join(layer.type for layer in match.change.base),
    "candidate_types": lambda match: " + ".join(layer.type for layer in match.change.candidate),
    "base_ms": lambda match: match.change.base_ms if match.change.base else None,
    "candidate_ms": lambda match: match.change.candidate_ms if match.change.candidate else None,
    "delta_ms": lambda match: match.change.delta_ms,
    "ratio": lambda match: match.change.verdict.ratio if match.change.verdict else None,
    "verdict": lambda match: match.change.verdict.verdict if match.change.verdict else None,
    "q_value": lambda match: match.change.verdict.q_value if match.change.verdict else None,
    "matched_by": lambda match: match.method,
    "confidence": lambda match: match.confidence,
}
COMPARISON_COLUMNS = tuple(_OF_MATCHES)


def comparison_csv(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> str:
    """Return all rows of the layer tables, once per candidate."""
    return csv_text([COMPARISON_COLUMNS, *comparison_rows(comparison, profiles)])


def comparison_rows(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> Iterator[list[Value]]:
    """Yield the cells of all rows of the layer tables, as `COMPARISON_COLUMNS` names them, once per candidate."""
    for compared, measured in zip(comparison.profiles, profiles, strict=True):
        labels = [comparison.subjects[index].label for index in compared.subjects]
        for candidate in range(1, len(measured)):
            changes = sorted(layer_changes(compared, measured, candidate), key=lambda change: change.row)
            for change in changes:
                row = compared.rows[change.row]
                how = row.methods[candidate], row.confidence_between(0, candidate)
                match = _Match(compared.name, (labels[0], labels[candidate]), change, *how)
                yield [cell(match) for cell in _OF_MATCHES.values()]


def csv_text(rows: Iterable[Sequence[Value]]) -> str:
    """Return the text of a CSV file with cells that are safe for spreadsheets."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([_field(cell) for cell in row] for row in rows)
    return text.getvalue()


def _field(cell: Value) -> Value:
    """Return a safe cell; NaN and infinity are left empty."""
    if isinstance(cell, float):
        return finite(cell)
    if not isinstance(cell, str):
        return cell
    shown = visible_name(cell)
    return f"'{shown}" if _FORMULA.match(cell) else shown


def layers_frame(profile: Profile) -> pd.DataFrame:
    """Return one row per layer; `share` is from 0 to 1. An engine that was not run has no columns of times."""
    import pandas as pd

    frame = pd.DataFrame(list(layer_rows(profile)), columns=list(LAYER_COLUMNS))
    was_run = any(layer.samples_ms for layer in profile.layers) or not profile.layers
    return frame if was_run else frame.drop(columns=list(TIME_COLUMNS))


def history_frame(history: MetricHistory) -> pd.DataFrame:
    """Return one row per measurement of each series; series differ in metric, machine, settings or inputs."""
    import pandas as pd

    of_series = ["metric", "unit", "machine", "settings", "inputs"]
    of_point = ["run", "started_at", "commit", "value", "doubt"]
    rows = [
        [*(getattr(series, name) for name in of_series), *(getattr(point, name) for name in of_point)]
        for series in history.series
        for point in series.points
    ]
    return pd.DataFrame(rows, columns=[*of_series, *of_point])


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
    from ndld_flow.report.exports.pictures import sweep_picture

    again, picture, notes = "ndld-flow report", None, list[str]()
    with noting(PICTURE, notes):
        picture = sweep_picture(record, folder / PICTURE) if EXTRAS["plots"].is_installed else None
    with noting(POINTS, notes):
        write_page(folder / POINTS, points_csv(record), again)
    with noting(SUMMARY, notes):
        write_page(folder / SUMMARY, sweep_markdown(record, has_picture=picture is not None), again)
    return notes
