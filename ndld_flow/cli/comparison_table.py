"""A comparison on a terminal: metrics with intervals, changed layers, differing conditions, gates, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ndld_flow.base.quantities import change, milliseconds, share
from ndld_flow.base.text import short_name
from ndld_flow.cli.tables import SIGNS, TerminalTable, wide_console
from ndld_flow.records.comparison import NOT_RECORDED, Comparison, ComparisonGate, MetricVerdict, ProfileComparison
from ndld_flow.records.profile import Profile
from ndld_flow.report.comparison.layers import largest_changes
from ndld_flow.report.comparison.verdicts import metric_values
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
        owner = _name_owner(comparison, gate) if several else ""
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


def _name_owner(comparison: Comparison, gate: ComparisonGate) -> str:
    """Return the subject of a gate, and its profile if there are several."""
    profile = next(each for each in comparison.profiles if each.name == gate.name)
    label = comparison.subjects[profile.subjects[gate.candidate]].label
    return f" of {short_name(label, 40)}" + (f" {short_name(gate.name, 40)}" if len(comparison.profiles) > 1 else "")
