"""Show how the metrics of a recipe changed, when, and why.

\b
  ndld-flow history nightly                                   # the metrics of its gates, or the latencies
  ndld-flow history nightly -m latency.p99 -m "*.nodes"       # others
  ndld-flow history nightly --html history.html               # a page with every metric
  ndld-flow history nightly --exit-code                       # for CI: 1 if a regression is not accepted
  ndld-flow history accept nightly speed.latency.median --note "larger input since June"

Measurements of the same metric, kind of machine, runtime and inputs form a series. A step is a change of level beyond
the noise, at 99.95 % confidence for each new point; it needs 8 measurements before it and 4 after. Listed is what
differed between the last measurement before it and the first one after it: settings, models, libraries, the driver,
the machine. Results that several runs reuse count once.

`accept` notes that a change is intended: gates against the history (`<= history.best + 3 %`) restart there. The note
is kept in OUTPUTS/accepted.json, which may be committed.

Exit codes: 0 success; 1 with --exit-code if the newest step of a series is a regression that is not accepted; 2 there
is no such recipe, metric or step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.quantities import counted, quantity, ratio_change
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.cli.options import NewFile, json_option, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.cli.terminal import hanging, styled

if TYPE_CHECKING:
    from ndld_flow.records.history import AcceptedChange, HistoryStep, MetricHistory, MetricSeries

_COLOURS = {"improved": "green", "regressed": "red", "changed": "yellow"}
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_STEPS = 5
_LONGEST = 80

OUTPUT: VerbOutput[MetricHistory | AcceptedChange] = VerbOutput(
    __name__, "The series of the metrics; with `accept`, the accepted change."
)


@public
def history(
    recipe: str = "",
    metrics: Sequence[str] = (),
    *,
    every: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> MetricHistory:
    """Return the history of a recipe's metrics, with steps, trends and what differed; also write it to `page`, as HTML.

    `metrics` are names (`speed.latency.median`, `latency.median`) or patterns; by default those of the gates, or the
    median latencies; with `every`, all of them. An empty `recipe` is the only one.
    """
    from ndld_flow.runs.metric_history import read_history
    from ndld_flow.runs.outputs import Outputs

    found = read_history(Outputs(Path(outputs)), recipe, metrics, every=every)
    if page is not None:
        from ndld_flow.report.history_page import draw_history

        draw_history(found, Path(page))
    return found


@public
def accept(
    recipe: str, metric: str, note: str, *, at: str = "", outputs: str | Path = DEFAULT_OUTPUTS
) -> AcceptedChange:
    """Accept the newest step of a metric, or that at the run `at`, with a note: baselines restart there."""
    from ndld_flow.runs.metric_history import accept_change, find_step, read_history
    from ndld_flow.runs.outputs import Outputs

    kept = Outputs(Path(outputs))
    series, step = find_step(read_history(kept, recipe, (metric,)).series, metric, at)
    return accept_change(kept, series, step, note)


@click.command("history", help=__doc__)
@click.argument("words", nargs=-1, metavar="[accept] [RECIPE] [METRIC]")
@click.option("--metric", "-m", "metrics", multiple=True, metavar="METRIC", help="A metric, or a pattern.")
@click.option("--all", "every", is_flag=True, help="All metrics; the page and --json always have all.")
@click.option("--html", type=NewFile(".html", ".htm"), metavar="FILE", help="Also write an HTML page.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if a series' newest step is an unaccepted regression.")
@click.option("--note", default="", metavar="TEXT", help="With `accept`: the reason.")
@click.option("--at", default="", metavar="RUN", help="With `accept`: the step at this run, not the newest.")
@outputs_option
@json_option
def command(
    words: tuple[str, ...],
    metrics: tuple[str, ...],
    every: bool,
    html: Path | None,
    exit_code: bool,
    note: str,
    at: str,
    outputs: Path,
    as_json: bool,
) -> int:
    if words[:1] == ("accept",):
        if len(words) != 3:
            raise click.UsageError("give the recipe and the metric: history accept RECIPE STEP.METRIC --note TEXT.")
        if not note.strip():
            raise click.UsageError("--note is missing: the reason is what others will look for.")
        change = accept(words[1], words[2], note.strip(), at=at, outputs=outputs)
        where = f"{change.metric} at {change.recipe}/{change.run}; {outputs / 'accepted.json'} has the note"
        print_json(OUTPUT, change) if as_json else click.echo(f"accepted: {where}")
        return 0
    if note or at:
        raise click.UsageError("--note and --at are options of `history accept`.")
    if len(words) > 2:
        raise click.UsageError("give a recipe, and perhaps a metric; more metrics with --metric.")
    metrics = (*words[1:], *metrics)
    whole = every or ((as_json or html is not None) and not metrics)
    found = history(words[0] if words else "", metrics, every=whole, outputs=outputs, page=html)
    if as_json:
        print_json(OUTPUT, found)
    else:
        main = found.main if whole and not every else [series.metric for series in found.series]
        _print_history(found, main)
        if html is not None:
            click.echo(f"page {html}")
    newest = [series.steps[-1] for series in found.series if series.steps]
    return 1 if exit_code and any(step.verdict == "regressed" and step.accepted is None for step in newest) else 0


def _print_history(history: MetricHistory, metrics: Collection[str]) -> None:
    for series in (each for each in history.series if each.metric in metrics):
        for start, text in _lines(series):
            click.echo(hanging(start, text))
        click.echo()
    others = len(set(history.metrics) - set(metrics))
    more = f"; {counted(others, 'more metric')} with --all" if others else ""
    click.echo(f"{history.recipe}: {counted(history.run_count, 'run')}{more}")
    if history.unreadable:
        click.echo(
            f"{counted(len(history.unreadable), 'run')} cannot be read; `ndld-flow runs` has the reason", err=True
        )


def _lines(series: MetricSeries) -> Iterator[tuple[str, str]]:
    """Yield the lines of a series, each with its indentation."""
    about = "; ".join(filter(None, (series.machine, series.settings)))
    yield "", f"{styled(visible_name(series.metric), 'bold')}  {visible_name(about)}"
    values = [point.value for point in series.points]
    yield "  ", f"{_sparkline(values)}  {_summary(series)}"
    for step in series.steps[-_STEPS:][::-1]:
        yield "  ", _describe_step(series, step)
        yield "    ", visible_name(step.why)
        if any(step.commits):
            yield "    ", f"commits {step.commits[0][:12] or 'unknown'} -> {step.commits[1][:12] or 'unknown'}"
        if step.accepted is not None:
            note = f"{visible_name(shortened(step.accepted.note, _LONGEST))} ({visible_name(step.accepted.user)})"
            yield "    ", f"accepted: {note}"
    if len(series.steps) > _STEPS:
        yield "  ", f"{counted(len(series.steps) - _STEPS, 'earlier step')} on the page (--html)"
    if series.trend is not None:
        change = (
            ratio_change(1 + series.trend.change) if min(values) > 0 else quantity(series.trend.change, series.unit)
        )
        yield (
            "  ",
            f"{styled('drifts', 'yellow')} by {change} over the last {counted(series.trend.points, 'measurement')}",
        )


def _summary(series: MetricSeries) -> str:
    """Return `3.21 ms, best 3.05 ms, 120 measurements`."""
    parts = []
    if series.level is not None:
        parts.append(f"now {quantity(series.level, series.unit)}")
    if series.best is not None and series.best != series.level:
        parts.append(f"best {quantity(series.best, series.unit)}")
    parts.append(counted(len(series.points), "measurement"))
    doubtful = sum(bool(point.doubt) for point in series.points)
    if doubtful:
        parts.append(f"{doubtful} of them no baseline")
    if series.remark:
        parts.append(series.remark)
    elif not series.steps:
        parts.append("no step")
    return ", ".join(parts)


def _describe_step(series: MetricSeries, step: HistoryStep) -> str:
    """Return `regressed by +5.1 % (95 %: +4.3 % to +5.9 %) 3.05 ms -> 3.21 ms at 20261120T..., 12 measurements ago`."""
    word = styled(step.verdict, _COLOURS[step.verdict])
    values = f"{quantity(step.before, series.unit)} -> {quantity(step.after, series.unit)}"
    if step.ratio is None:
        change = values
    elif series.exact:
        change = f"{ratio_change(step.ratio)}, {values}"
    else:
        interval = f"95 %: {ratio_change(step.low)} to {ratio_change(step.high)}"
        change = f"{ratio_change(step.ratio)} ({interval}), {values}"
    ago = len(series.points) - step.place
    return f"{word} {change} at {step.run}, {step.started_at:%Y-%m-%d %H:%M} UTC, {counted(ago, 'measurement')} ago"


def _sparkline(values: Sequence[float]) -> str:
    """Return bars of the medians of equal parts of a series."""
    import statistics

    count = min(len(values), _WIDTH)
    parts = [values[len(values) * index // count : len(values) * (index + 1) // count] for index in range(count)]
    medians = [statistics.median(part) for part in parts]
    low, high = min(medians), max(medians)
    if high == low:
        return _BARS[0] * count
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in medians)
