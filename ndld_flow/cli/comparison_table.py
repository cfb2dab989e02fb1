"""Comparisons on a terminal (metrics, layers, conditions, gates, verdict); differences of models and engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ndld_flow.base.quantities import change, counted, milliseconds, share, size
from ndld_flow.base.text import short_name
from ndld_flow.cli.tables import SIGNS, TerminalTable, wide_console
from ndld_flow.cli.terminal import hanging
from ndld_flow.records.build import EngineComparison, EngineVerdict
from ndld_flow.records.comparison import NOT_RECORDED, Comparison, MetricVerdict, ProfileComparison
from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.records.profile import Profile
from ndld_flow.report.comparison.verdicts import largest_changes, metric_values
from ndld_flow.report.diff_rows import DiffLine, DiffPart, DiffRow, collect_diff
from ndld_flow.report.tables import Column, Table

_LAYERS = 8
_LONGEST_LABEL = 28


def print_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> None:
    """Print the metrics and layers of a comparison; its verdict belongs below, where it stays on the screen."""
    wide_console().print(Group(*_parts(comparison, profiles)))


def print_verdict(comparison: Comparison) -> None:
    """Print what could not be compared, the gates, and the verdict, each on one line."""
    console = wide_console()
    for line in _sentences(comparison):
        console.print(line, soft_wrap=not console.is_terminal)  # a log must be searchable


def _parts(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> Iterator[RenderableType]:
    # Steps of one run are labelled by their own names alone.
    every = [subject.label for subject in comparison.subjects]
    steps = [label.partition(":")[2] for label in every]
    one_run = len({label.partition(":")[0] for label in every}) == 1 and len(set(steps)) == len(every) and all(steps)
    labels = [short_name(label, _LONGEST_LABEL) for label in (steps if one_run else every)]
    for compared, measured in zip(comparison.profiles, profiles, strict=True):
        yield Text(short_name(compared.name, 60), style="bold cyan")
        yield from (Padding(part, (0, 0, 0, 2)) for part in _circumstances(compared, labels))
        for candidate in range(1, len(compared.subjects)):
            yield Padding(_metric_table(compared, candidate, labels), (0, 0, 0, 2))
            yield Padding(_one_sided(compared, candidate), (0, 0, 1, 2))
            if layers := _changed_layers(compared, measured, candidate):
                base, against = (labels[compared.subjects[index]] for index in (0, candidate))
                yield Text(f"layers that changed most, {base} to {against}", style="bold cyan")
                yield Padding(TerminalTable(layers, optional=("matched by", "type", "difference")), (0, 0, 1, 2))


def _sentences(comparison: Comparison) -> Iterator[Text]:
    for sentence in comparison.left_out:
        yield Text(short_name(sentence, 200), style="yellow")
    several = len(comparison.subjects) > 2 or len(comparison.profiles) > 1
    for gate in comparison.gates:
        sign, colour = SIGNS[gate.outcome]
        outcome, text = (f"{sign} {gate.outcome} ", colour), (short_name(gate.gate, 100), "bold")
        owner = ""
        if several:
            profile = next(each for each in comparison.profiles if each.name == gate.name)
            owner = f" of {short_name(comparison.subjects[profile.subjects[gate.candidate]].label, 40)}"
            owner += f" {short_name(gate.name, 40)}" if len(comparison.profiles) > 1 else ""
        yield Text.assemble(outcome, text, f"{owner}: {short_name(gate.why, 300)}")
    sign, colour = SIGNS[comparison.verdict]
    word = (f"{sign} {comparison.verdict.upper()}", f"bold {colour}")
    yield Text.assemble(word, f": {short_name(comparison.why, 400)}")


def _circumstances(profile: ProfileComparison, labels: list[str]) -> Iterator[Text]:
    for difference in profile.differences:
        if difference.circumstance == "options" and not difference.forbids:
            continue  # the report lists them
        if not any(difference.values):
            continue  # the verdict lists the conditions that no profile recorded
        values = " | ".join(short_name(value, 60) or NOT_RECORDED for value in difference.values)
        allowed = " (allowed)" if difference.allowed else ""
        style = "magenta" if difference.forbids and not difference.allowed else "dim"
        yield Text(f"{difference.circumstance}, {short_name(difference.detail, 40)}: {values}{allowed}", style=style)
    for index, coverage in enumerate(profile.coverage):
        if coverage is not None:
            label = labels[profile.subjects[index]]
            yield Text(f"{label}: {share(coverage.matched_share)} of its layer time is matched", style="dim")


def _metric_table(profile: ProfileComparison, candidate: int, labels: list[str]) -> TerminalTable:
    """Return the metrics that both profiles have."""
    names = [labels[profile.subjects[index]] for index in (0, candidate)]
    columns = (
        Column("metric", "name"),
        *(Column(name, "number") for name in names),
        Column("change", "label"),
        Column("95 % interval", "label"),
        Column("", "outcome"),
    )
    verdicts = {
        verdict.metric: verdict for verdict in profile.verdicts if (verdict.base, verdict.candidate) == (0, candidate)
    }
    shown = [metric for metric in profile.metrics if None not in (metric.values[0], metric.values[candidate])]
    rows = []
    for metric in shown:
        verdict = verdicts.get(metric.metric)
        values = metric_values(metric, candidate, verdict)
        name = short_name(metric.metric, 40) + (" in rounds" if profile.is_of_rounds(metric.metric) else "")
        rows.append((name, *values, *_describe_change(verdict)))
    deciding = [number for number, metric in enumerate(shown) if metric.metric == profile.decided_by]
    return TerminalTable(Table(columns, tuple(rows)), optional=("95 % interval",), bold_rows=deciding)


def _one_sided(profile: ProfileComparison, candidate: int) -> Text:
    """Return a note on the metrics that only one of the two profiles has."""
    absent = [metric for metric in profile.metrics if None in (metric.values[0], metric.values[candidate])]
    known = [metric for metric in absent if (metric.values[0], metric.values[candidate]) != (None, None)]
    if not known:
        return Text("")
    plural = "s are" if len(known) > 1 else " is"
    return Text(f"{len(known)} metric{plural} known of one side only, and listed in the report", style="dim")


def _describe_change(verdict: MetricVerdict | None) -> tuple[str, str, str]:
    if verdict is None:
        return "", "", ""
    exact = verdict.low == verdict.high
    spread = f"{change(1, verdict.low)} … {change(1, verdict.high)}" if verdict.interval_is_known else "no interval"
    interval = "" if exact else spread
    return change(1, verdict.ratio), interval, verdict.verdict


def _changed_layers(compared: ProfileComparison, profiles: Sequence[Profile], candidate: int) -> Table | None:
    """Return the layers whose times changed most, as the report lists them; None without layers."""
    rows = largest_changes(compared, profiles, candidate)[:_LAYERS]
    if not rows:
        return None
    columns = (
        Column("base", "number", milliseconds),
        Column("candidate", "number", milliseconds),
        Column("difference", "number"),
        Column("change", "number"),
        Column("layer", "name"),
        Column("type", "text"),
        Column("matched by", "text"),
        Column("", "outcome"),
    )
    cells = [
        (
            *(row.base_ms, row.candidate_ms, row.delta, row.change),
            *(short_name(row.name, 60), short_name(row.type, 24), row.method, row.verdict),
        )
        for row in rows
    ]
    return Table(columns, tuple(cells))


_MOST_ROWS = 40
_MOST_ASIDE = 5
"""Rows shown of nodes that were only renamed; their count is more important."""
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def print_diff(diff: ModelDiff, before: str, after: str, show_all: bool) -> None:
    """Print the differences in the style of a unified diff."""
    console = wide_console()
    view = collect_diff(diff)
    if not diff.is_empty:
        console.print(Text(f"A  {short_name(before)}\nB  {short_name(after)}", style="dim"))
    for part in view.parts:
        console.print(Text(f"\n{part.title}: {part.words}", style="bold cyan"), soft_wrap=True)
        for line in _lines(part, show_all):
            console.print(line, soft_wrap=True)  # a line that is broken cannot be found by a search
    end = Text(f"{'' if diff.is_empty else chr(10)}{view.one_line}", style="bold")
    console.print(end, soft_wrap=True)
    if not view.values_compared and not diff.is_empty:
        console.print(Text("the values of weights were not compared", style="dim"))


def _lines(part: DiffPart, show_all: bool) -> Iterator[Text]:
    matters = [row for row in part.rows if not row.is_aside]
    aside = [row for row in part.rows if row.is_aside]
    most = (len(matters), len(aside)) if show_all else (_MOST_ROWS, _MOST_ASIDE)
    shown = [*matters[: most[0]], *aside[: most[1]]]
    for row in shown:
        yield from _row(row)
    more = len(part.rows) - len(shown)
    if more:
        yield Text(f"  … {more:,} more; --all shows them, --html lets you search them", style="dim")
    if part.left_out:
        yield Text(f"  … {part.left_out:,} more were counted but not recorded", style="dim")


def _row(row: DiffRow) -> Iterator[Text]:
    """Return one line if one property changed, else a heading and one line for each."""
    style = "dim" if row.is_aside else _COLOURS[row.sign]
    head = Text.assemble((f"{row.sign} ", _COLOURS[row.sign]))
    names = f"{row.was} -> {row.name}" if row.was else row.name
    words = (row.kind, names) if row.part == "nodes" else (names, row.kind)
    head.append(" ".join(word for word in words if word), style=style)
    if row.scope:
        head.append(f"  in {row.scope}", style="dim")
    if row.detail:
        head.append(f"  {row.detail}", style="dim" if row.sign != "~" else "")
    if len(row.lines) == 1:
        yield head.append("  ").append_text(_line(row.lines[0]))
        return
    yield head
    for line in row.lines:
        yield Text("      ").append_text(_line(line))


def _line(line: DiffLine) -> Text:
    """Format one change: `axis: 1 -> 0`."""
    text = Text(style="dim" if line.is_consequence else "")
    if line.label:
        text.append(f"{line.label}: ")
    text.append("none" if line.before is None else line.before, style="" if line.is_consequence else "red")
    text.append(" -> ")
    text.append("none" if line.after is None else line.after, style="" if line.is_consequence else "green")
    return text.append(" (as a consequence)") if line.is_consequence else text


_VERDICT_COLOURS: dict[EngineVerdict, str] = {
    "identical": "green",
    "equal": "green",
    "undecided": "yellow",
    "different": "red",
}


def print_engines(title: str, compared: EngineComparison, page: str = "") -> None:
    """Print the verdict on two engines with its differences and their causes, and where the page is."""
    verdict = click.style(compared.verdict, fg=_VERDICT_COLOURS[compared.verdict], bold=True)
    about = counted(compared.layer_count, "layer")
    if compared.after_bytes is not None:
        about += f", {size(compared.after_bytes)}"
    click.echo(f"{short_name(title, 200)}: {verdict}, {about}")
    for difference in compared.differences:
        click.echo(hanging("  ", difference))
    for cause in compared.causes:
        click.echo(hanging("  cause: ", cause))
    if page:
        click.echo(page)
