"""A comparison on a terminal: metrics with their intervals, what differs, the layers that changed most, the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ndld_flow.cli.triage_table import wide_console
from ndld_flow.plain_text import short_name
from ndld_flow.quantities import change, quantity, share
from ndld_flow.records.comparison import Comparison, ComparisonGate, MetricVerdict, ProfileComparison

SIGNS = {
    "improved": ("✓", "green"),
    "regressed": ("✗", "red"),
    "unchanged": ("=", "default"),
    "inconclusive": ("?", "yellow"),
    "incomparable": ("≠", "magenta"),
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
}
"""Verdict or outcome -> sign and colour; the word stands beside them."""


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison, the verdict last: it is then what a terminal shows without scrolling."""
    console = wide_console()
    console.print(Group(*_parts(comparison)))
    for line in _sentences(comparison):
        console.print(line, soft_wrap=True)  # a sentence that is cut by hand can be searched for no more


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    labels = [short_name(subject.label, 40) for subject in comparison.subjects]
    for profile in comparison.profiles:
        yield Text(short_name(profile.name, 60), style="bold cyan")
        yield from (Padding(part, (0, 0, 0, 2)) for part in _about(profile, labels))
        yield Padding(_metric_table(profile, labels), (0, 0, 1, 2))


def _sentences(comparison: Comparison) -> Iterator[Text]:
    for sentence in comparison.left_out:
        yield Text(short_name(sentence, 200), style="yellow")
    yield from map(_gate_line, comparison.gates)
    yield _verdict(comparison.verdict, comparison.why)


def _about(profile: ProfileComparison, labels: list[str]) -> Iterator[Text]:
    for difference in profile.differences:
        if difference.circumstance == "options" and not difference.forbids:
            continue  # the report lists them
        told = " | ".join(short_name(value, 60) or "-" for value in difference.values)
        allowed = " (allowed)" if difference.allowed else ""
        style = "magenta" if difference.forbids and not difference.allowed else "dim"
        yield Text(f"{difference.circumstance}, {short_name(difference.detail, 40)}: {told}{allowed}", style=style)
    for place, coverage in enumerate(profile.coverage):
        if coverage is not None:
            label = labels[profile.subjects[place]]
            yield Text(f"{label}: {share(coverage.matched_share)} of its layer time has a partner", style="dim")


def _metric_table(profile: ProfileComparison, labels: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("metric", no_wrap=True)
    table.add_column(labels[profile.subjects[0]], justify="right", no_wrap=True)
    for subject in profile.subjects[1:]:
        table.add_column(labels[subject], justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
        table.add_column("95 % interval", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    verdicts = {(verdict.metric, verdict.candidate): verdict for verdict in profile.verdicts if verdict.base == 0}
    for metric in profile.metrics:
        texts = [quantity(value, metric.unit) if value is not None else "-" for value in metric.values]
        cells: list[str | Text] = [texts[0]]
        for candidate in range(1, len(profile.subjects)):
            cells += [texts[candidate], *_change(verdicts.get((metric.metric, candidate)))]
        table.add_row(metric.metric, *cells, style="bold" if metric.metric == profile.decided_by else None)
    return table


def _change(verdict: MetricVerdict | None) -> list[str | Text]:
    if verdict is None:
        return ["", "", ""]
    exact = verdict.low == verdict.high
    interval = "" if exact else f"{change(1, verdict.low)} … {change(1, verdict.high)}"
    return [change(1, verdict.ratio), interval, _signed(verdict.verdict)]


def _signed(word: str) -> Text:
    sign, colour = SIGNS[word]
    return Text(f"{sign} {word}", style=colour)


def _gate_line(gate: ComparisonGate) -> Text:
    sign, colour = SIGNS[gate.outcome]
    return Text.assemble(
        (f"{sign} {gate.outcome} ", colour), (short_name(gate.gate, 100), "bold"), f": {short_name(gate.why, 300)}"
    )


def _verdict(word: str, why: str) -> Text:
    sign, colour = SIGNS[word]
    return Text.assemble((f"{sign} {word.upper()}", f"bold {colour}"), f": {short_name(why, 400)}")
