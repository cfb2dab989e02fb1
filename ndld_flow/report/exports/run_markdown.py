"""Write the result of a run for a pull request or a job's summary: outcome, gates, latencies, comparisons."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.records.comparison import Comparison
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_summary import GateView, Summary, collect_gates, collect_summary
from ndld_flow.report.exports.comparison_markdown import HEADING, comparison_parts, that_fit
from ndld_flow.report.exports.github_markdown import SIGNS, code, details, mermaid_bars, prose, table
from ndld_flow.report.variant_text import split_conclusion
from ndld_flow.report.verdict import outcome_line, verdict_lines

RUN_SUMMARY = "summary.md"
"""The result of a run as Markdown, in its folder."""
_LOG_LINES = 10
_GATES = 50
_LINE = 2000
"""Characters of a line of the conclusion of `optimize`."""


def run_markdown(documents: RunDocuments) -> str:
    """Return Markdown that needs no other file: pictures are diagrams that GitHub and GitLab draw themselves."""
    return "\n".join(that_fit(run_parts(documents)))


def run_parts(documents: RunDocuments) -> Iterator[str]:
    """Yield the parts of a run's Markdown: the conclusion of `optimize` if there is one, then the outcome."""
    summary = collect_summary(documents)
    if documents.optimization is not None:
        headline, lines = split_conclusion(documents.optimization, _LINE)
        items = (
            *(prose(line, _LINE) for line in lines),
            f"Repeat it: {code(documents.optimization.command, _LINE)}",
        )
        front = (prose(line, _LINE) for line in documents.optimization.describe_front())
        yield f"{HEADING}{prose(headline, _LINE)}\n\n" + "".join(f"- {item}\n" for item in (*items, *front))
    yield f"{HEADING}{SIGNS[ENDINGS[summary.outcome].tone]} {prose(outcome_line(summary))}\n"
    yield from _failure(summary)
    rows = (line.partition(" ") for line in verdict_lines(summary)[1:])
    yield table(["", "Result"], [[word, prose(text)] for word, _, text in rows if not text.startswith("none ")])
    gates = collect_gates(documents.run)[:_GATES]
    if gates:
        yield table(["Gate", "Measured", "Limit", ""], map(_gate, gates), numbers=(1, 2))
    medians = {step: profile.latency.median_ms for step, profile in documents.of(Profile).items() if profile.latency_ms}
    compared = {step for each in documents.of(Comparison).values() for part in each.profiles for step in part.steps}
    if len(medians) > 1 and not compared >= medians.keys():  # else the comparison has its own chart
        yield mermaid_bars("Median latency", medians, "ms")
    for step in documents.of(Comparison):
        profiles = documents.compared(step)
        if profiles is not None:
            yield from comparison_parts(documents.of(Comparison)[step], profiles)
    if documents.unreadable:
        yield "".join(f"- {prose(sentence)}\n" for sentence in documents.unreadable)


def _failure(summary: Summary) -> Iterator[str]:
    if summary.failure is None:
        return
    if summary.failure.message.strip() != summary.reasons[0]:  # else the outcome has all of it
        yield f"{prose(summary.failure.message, 2000)}\n"
    for step, log in summary.failure.logs:
        lines = "<br>".join(prose(line, 200) for line in log.splitlines()[-_LOG_LINES:])
        yield details(f"Last lines of {code(step)}", f"{lines}\n")


def _gate(gate: GateView) -> list[str]:
    limit = f"{gate.relation} {gate.right}".strip()
    return [
        code(gate.gate, 120) + (f" {prose(gate.note)}" if gate.outcome == "inconclusive" else ""),
        prose(gate.left),
        prose(limit),
        f"{SIGNS.get(gate.outcome, '')} {gate.outcome}".strip(),
    ]
