"""A comparison on a terminal: metrics with their intervals, differing circumstances, gates and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ndld_flow.base.quantities import change, share
from ndld_flow.base.text import short_name
from ndld_flow.cli.triage_table import wide_console
from ndld_flow.records.comparison import NOT_RECORDED, Comparison, ComparisonGate, MetricVerdict, ProfileComparison
from ndld_flow.report.comparison.verdicts import paired_values

SIGNS = {
    "improved": ("✓", "green"),
    "regressed": ("✗", "red"),
    "unchanged": ("=", "default"),
    "inconclusive": ("?", "yellow"),
    "incomparable": ("≠", "magenta"),
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
}
"""Sign and colour of each verdict or outcome, which are printed with its word."""


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison with the verdict last, where a terminal shows it without scrolling."""
    console = wide_console()
    console.print(Group(*_parts(comparison)))
    for line in _sentences(comparison):
        console.print(line, soft_wrap=True)  # a sentence that is broken into lines cannot be searched for


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    labels = [short_name(subject.label, 28) for subject in comparison.subjects]
    for profile in comparison.profiles:
        yield Text(short_name(profile.name, 60), style="bold cyan")
        yield from (Padding(part, (0, 0, 0, 2)) for part in _about(profile, labels))
        for candidate in range(1, len(profile.subjects)):
            yield Padding(_metric_table(profile, candidate, labels), (0, 0, 1, 2))


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


def _about(profile: ProfileComparison, labels: list[str]) -> Iterator[Text]:
    for difference in profile.differences:
        if difference.circumstance == "options" and not difference.forbids:
            continue  # the report lists them
        if not any(difference.values):
            continue  # the verdict lists the circumstances that no profile recorded
        values = " | ".join(short_name(value, 60) or NOT_RECORDED for value in difference.values)
        allowed = " (allowed)" if difference.allowed else ""
        style = "magenta" if difference.forbids and not difference.allowed else "dim"
        yield Text(f"{difference.circumstance}, {short_name(difference.detail, 40)}: {values}{allowed}", style=style)
    for place, coverage in enumerate(profile.coverage):
        if coverage is not None:
            label = labels[profile.subjects[place]]
            yield Text(f"{label}: {share(coverage.matched_share)} of its layer time is matched", style="dim")


def _metric_table(profile: ProfileComparison, candidate: int, labels: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("metric", no_wrap=True)
    for place in (0, candidate):
        table.add_column(labels[profile.subjects[place]], justify="right", no_wrap=True, min_width=8)
    table.add_column("change", justify="right", no_wrap=True, min_width=7)
    table.add_column("95 % interval", justify="right", no_wrap=True, min_width=16)
    table.add_column("", no_wrap=True, min_width=14)
    verdicts = {each.metric: each for each in profile.verdicts if (each.base, each.candidate) == (0, candidate)}
    for metric in profile.metrics:
        verdict = verdicts.get(metric.metric)
        texts = paired_values(metric, verdict, (0, candidate))
        style = "bold" if metric.metric == profile.decided_by else None
        table.add_row(metric.metric, *texts, *_change(verdict), style=style)
    return table


def _change(verdict: MetricVerdict | None) -> list[str | Text]:
    if verdict is None:
        return ["", "", ""]
    exact = verdict.low == verdict.high
    interval = "" if exact else f"{change(1, verdict.low)} … {change(1, verdict.high)}"
    sign, colour = SIGNS[verdict.verdict]
    return [change(1, verdict.ratio), interval, Text(f"{sign} {verdict.verdict}", style=colour)]


def _name_owner(comparison: Comparison, gate: ComparisonGate) -> str:
    """Return the subject of a gate, and its profile if there are several."""
    profile = next(each for each in comparison.profiles if each.name == gate.name)
    label = comparison.subjects[profile.subjects[gate.candidate]].label
    return f" of {short_name(label, 40)}" + (f" {short_name(gate.name, 40)}" if len(comparison.profiles) > 1 else "")
