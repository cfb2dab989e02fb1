"""Write comparisons, runs and differences of models as Markdown for pull requests and summaries of jobs.

The verdict comes first, then the evidence, with long parts folded. Texts are untrusted: names are in `<code>`, where
GitHub creates no mentions, links to issues or emoji, and characters with a meaning in Markdown are written as character
references, which Markdown treats as plain text
(https://github.github.com/gfm/#entity-and-numeric-character-references).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from ndld_flow.base.quantities import ABSENT, MINUS, TIMES, change, milliseconds, share, three_digits
from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import NOT_RECORDED, Comparison, MetricVerdict, ProfileComparison
from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.collect_summary import GateView, Summary, collect_gates, collect_summary
from ndld_flow.report.comparison.subjects import collect_rounds
from ndld_flow.report.comparison.verdicts import LayerChange, layer_changes, metric_values
from ndld_flow.report.diff_rows import DiffLine, DiffPart, DiffRow, collect_diff
from ndld_flow.report.verdict import outcome_line, verdict_lines

_LAYERS = 10
_SLOWER = 5
_METRICS = 40
_SENTENCES = 20
_LONGEST = 60_000
"""Maximum number of characters: GitHub rejects comments of more than 65,536."""
HEADING = "### "
"""Beginning of a part with a verdict."""
_OUTCOMES = ("passed", "inconclusive", "failed", "incomparable")
"""Outcomes by rank; the headline shows the highest."""


def comparison_markdown(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> str:
    """Return Markdown for a pull request's comment or a job's summary. Relative paths of pictures do not resolve
    there, so it has diagrams, which GitHub and GitLab draw themselves.
    """
    return "\n".join(that_fit(comparison_parts(comparison, profiles)))


def comparison_parts(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> Iterator[str]:
    """Yield the parts of a comparison's Markdown, the verdict first."""
    yield f"{HEADING}{_headline(comparison)}\n"
    labels = [code(subject.label) for subject in comparison.subjects]
    against = f"{', '.join(labels[1:])} against {labels[0]}" if len(labels) > 1 else labels[0]
    mean = comparison.geometric_mean_ratio
    over_all = f" Geometric mean over all profiles: {_ratio(mean)}." if mean is not None else ""
    yield f"{against}.{over_all}\n"
    gates = []
    for gate in comparison.gates:
        gated = next((profile for profile in comparison.profiles if profile.name == gate.name), None)
        label = _label(comparison, gated, gate.candidate) if gated else ""
        gates.append([code(gate.gate, 100), code(gate.name, 40), label, _sign(gate.outcome), prose(gate.why)])
    yield table(["Gate", "Profile", "Candidate", "", "Why"], gates) if gates else ""
    for compared, measured in zip(comparison.profiles, profiles, strict=True):
        yield _chart(comparison, compared, measured)
        yield from _profile(comparison, compared, measured)
    yield from (f"- {prose(sentence)}\n" for sentence in comparison.left_out[:_SENTENCES])
    if comparison.noise:
        yield f"Noise: {prose(comparison.noise)}\n"


def _headline(comparison: Comparison) -> str:
    """Return the result of the gates, if there are any, and the verdict."""
    verdict = f"{_sign(comparison.verdict)}: {prose(comparison.why)}"
    if not comparison.gates:
        return verdict
    worst = max((gate.outcome for gate in comparison.gates), key=_OUTCOMES.index)
    count = sum(gate.outcome == worst for gate in comparison.gates)
    gates = "gate" if len(comparison.gates) == 1 else f"{count} of {len(comparison.gates)} gates"
    return f"{SIGNS.get(worst, '')} {gates} {worst}. {verdict}"


def that_fit(parts: Iterable[str]) -> Iterator[str]:
    """Yield non-empty parts in order until the maximum length of a comment; those that begin with `HEADING`, which hold
    the verdicts, have precedence over all others.
    """
    present, room, kept = [part for part in parts if part], _LONGEST, set[int]()
    for first in (True, False):
        for index, part in enumerate(present):
            if part.startswith(HEADING) is first and len(part) < room:
                room -= len(part) + 1
                kept.add(index)
    yield from (present[place] for place in sorted(kept))
    if len(kept) < len(present):
        yield "The report has more: the maximum length of a comment is reached.\n"


def _sign(word: str) -> str:
    return f"{SIGNS.get(word, '')} {word}"


def _label(comparison: Comparison, compared: ProfileComparison, index: int) -> str:
    return code(comparison.subjects[compared.subjects[index]].label, 40)


def _profile(comparison: Comparison, compared: ProfileComparison, measured: Sequence[Profile]) -> Iterator[str]:
    if len(comparison.profiles) > 1:
        yield f"#### {code(compared.name)}\n"
    rows = list(_metric_rows(comparison, compared))
    labels = [_label(comparison, compared, index) for index in range(len(compared.subjects))]
    # A single candidate has a column; several candidates have rows of their own.
    named = labels if len(labels) == 2 else ["Candidate", labels[0], ""]
    head = ["Metric", *named, "Ratio", "95 % interval", "Verdict"]
    numbers = range(len(named) - 1, len(named) + 2)
    first = len(compared.subjects) - 1
    yield table(head, rows[:first], numbers)
    if len(rows) > first:
        yield details("All metrics", table(head, rows[first:_METRICS], numbers))
    for view in collect_rounds(comparison):
        if view.profile == short_name(compared.name, 80):
            yield f"{prose(' '.join(view.sentences), 1200)}\n"
    for candidate in range(1, len(measured)):
        yield from _layers(comparison, compared, measured, candidate)
    yield _differences(comparison, compared)


def _chart(comparison: Comparison, compared: ProfileComparison, measured: Sequence[Profile]) -> str:
    """Return the chart of the deciding metric, or of median latencies where none decides; empty for a pair, whose bars
    would look equal where the table shows a difference.
    """
    if len(compared.subjects) < 3:
        return ""
    names = [f"{index + 1} {comparison.subjects[subject].label}" for index, subject in enumerate(compared.subjects)]
    metric = next((metric for metric in compared.metrics if metric.metric == compared.decided_by), None)
    if metric is None:
        medians = {name: each.latency.median_ms for name, each in zip(names, measured, strict=True) if each.latency_ms}
        return mermaid_bars("Median latency", medians, "ms")
    shown = {name: value for name, value in zip(names, metric.values, strict=False) if value is not None}
    return mermaid_bars(metric.metric, shown, metric.unit)


def _metric_rows(comparison: Comparison, compared: ProfileComparison) -> Iterator[list[str]]:
    """Yield rows of metrics, the deciding metric of every candidate first."""
    ordered = sorted(compared.metrics, key=lambda metric: metric.metric != compared.decided_by)
    against_base = {(verdict.metric, verdict.candidate): verdict for verdict in compared.verdicts if verdict.base == 0}
    for metric in ordered:
        for candidate in range(1, len(compared.subjects)):
            verdict = against_base.get((metric.metric, candidate))
            label = [_label(comparison, compared, candidate)] if len(compared.subjects) > 2 else []
            values = map(prose, metric_values(metric, candidate, verdict))
            origin = " in rounds" if compared.is_of_rounds(metric.metric) else ""
            yield [f"{code(metric.metric)}{origin}", *label, *values, *_verdict(verdict)]


def _verdict(verdict: MetricVerdict | None) -> list[str]:
    if verdict is None:
        return [ABSENT, ABSENT, ABSENT]
    exact = verdict.low == verdict.high
    spread = f"{_ratio(verdict.low)} to {_ratio(verdict.high)}" if verdict.interval_is_known else "no interval"
    interval = "exact" if exact else spread
    return [_ratio(verdict.ratio), interval, _sign(verdict.verdict)]


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}{TIMES}" if math.isfinite(ratio) and ratio < 100 else f"{three_digits(ratio)}{TIMES}"


def _layers(
    comparison: Comparison, compared: ProfileComparison, measured: Sequence[Profile], candidate: int
) -> Iterator[str]:
    """Yield the largest changes, and the time of layers without a partner."""
    ranked = layer_changes(compared, measured, candidate)
    changes = [change_ for change_ in ranked[:_LAYERS] if change_.delta_ms]
    coverage = compared.coverage[candidate]
    of = f" of {_label(comparison, compared, candidate)}" if len(measured) > 2 else ""
    yield _slower(ranked, of)
    unmatched = ""
    if coverage is not None and coverage.unmatched_ms > 0:
        unmatched = (
            f"\n{milliseconds(coverage.unmatched_ms)} of its layer time ({share(1 - coverage.matched_share)}) has no "
            "partner in the base.\n"
        )
    if changes or unmatched:
        head = ["Layer", "Type", "Base", "Candidate", "Change", ""]
        body = table(head, [_layer(change_) for change_ in changes], numbers=(2, 3, 4)) if changes else ""
        yield details(f"Largest changes of layers{of}", body + unmatched)


def _slower(ranked: Sequence[LayerChange], of: str) -> str:
    """Return the layers that a test over several runs found slower, the largest change first."""
    tested = [each for each in ranked if each.verdict is not None and each.verdict.q_value is not None]
    slower = [each for each in tested if each.verdict is not None and each.verdict.verdict == "regressed"]
    if not slower:
        return ""
    named = [f"{code(each.name)} {' '.join(filter(None, _delta(each)))}" for each in slower[:_SLOWER]]
    named += [f"{len(slower) - _SLOWER} more"] if len(slower) > _SLOWER else []
    count = "1 layer" if len(slower) == 1 else f"{len(slower)} layers"
    return f"**{count}{of} became slower**: {', '.join(named)}\n"


def _delta(changed: LayerChange) -> tuple[str, str]:
    """Return the change in time, and relative to the base where both sides have the layer."""
    sign = "+" if changed.delta_ms > 0 else MINUS
    relative = change(changed.base_ms, changed.candidate_ms) if changed.base and changed.candidate else ""
    return f"{sign}{milliseconds(abs(changed.delta_ms))}", f"({relative})" if relative else ""


def _layer(changed: LayerChange) -> list[str]:
    """Return the cells of a changed layer; a layer of only one side has a note instead of a change."""
    alone = "only in the base" if not changed.candidate else "only in the candidate" if not changed.base else ""
    sign = _sign(changed.verdict.verdict) if changed.verdict is not None else ""
    return [
        code(changed.name),
        code(" + ".join(dict.fromkeys(layer.type for layer in changed.base or changed.candidate)), 40),
        milliseconds(changed.base_ms) if changed.base else ABSENT,
        milliseconds(changed.candidate_ms) if changed.candidate else ABSENT,
        " ".join(filter(None, _delta(changed))),
        alone or sign,
    ]


def _differences(comparison: Comparison, compared: ProfileComparison) -> str:
    if not compared.differences:
        return ""
    head = ["Circumstance", "", *(_label(comparison, compared, index) for index in range(len(compared.subjects))), ""]
    rows = []
    for difference in compared.differences:
        effect = ("allowed" if difference.allowed else "forbids a verdict") if difference.forbids else ""
        values = [code(value, 120) or NOT_RECORDED for value in difference.values]
        rows.append([difference.circumstance, code(difference.detail), *values, effect])
    summary = f"{len(rows)} {'difference' if len(rows) == 1 else 'differences'} in conditions"
    serious = sum(difference.forbids and not difference.allowed for difference in compared.differences)
    return details(f"{summary}, {serious} of which forbid a verdict" if serious else summary, table(head, rows))


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
        headline, lines = documents.optimization.conclude_page(_LINE)
        items = (*(prose(line, _LINE) for line in lines), f"Repeat it: {code(documents.optimization.command, _LINE)}")
        front = (prose(line, _LINE) for line in documents.optimization.describe_front())
        yield f"{HEADING}{prose(headline, _LINE)}\n\n" + "".join(f"- {item}\n" for item in (*items, *front))
    yield f"{HEADING}{SIGNS[ENDINGS[summary.run.outcome].tone]} {prose(outcome_line(summary))}\n"
    yield from _run_failure(summary)
    rows = (line.partition(" ") for line in verdict_lines(summary)[1:])
    yield table(["", "Result"], [[word, prose(text)] for word, _, text in rows if not text.startswith("none ")])
    gates = collect_gates(documents.run)[:_GATES]
    if gates:
        yield table(["Gate", "Measured", "Limit", ""], map(_run_gate, gates), numbers=(1, 2))
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


def _run_failure(summary: Summary) -> Iterator[str]:
    if summary.failure is None:
        return
    if summary.failure.message.strip() != summary.reasons[0]:  # else the outcome has all of it
        yield f"{prose(summary.failure.message, 2000)}\n"
    for step, log in summary.failure.logs:
        lines = "<br>".join(prose(line, 200) for line in log.splitlines()[-_LOG_LINES:])
        yield details(f"Last lines of {code(step)}", f"{lines}\n")


def _run_gate(gate: GateView) -> list[str]:
    limit = f"{gate.relation} {gate.right}".strip()
    return [
        code(gate.gate, 120) + (f" {prose(gate.note)}" if gate.outcome == "inconclusive" else ""),
        prose(gate.left),
        prose(limit),
        f"{SIGNS.get(gate.outcome, '')} {gate.outcome}".strip(),
    ]


_DIFF_ROWS = 60
_DIFF_ASIDE = 10
"""Maximum rows if few are relevant; further renames are only counted."""
_DIFF_SHORT = 6
"""Maximum number of rows of a part that is not folded."""


def diff_markdown(diff: ModelDiff, before: str, after: str) -> str:
    """Return Markdown for a pull request's comment or a job's summary."""
    view = collect_diff(diff)
    head = f"### {prose(view.one_line)}\n\n{code(before, 100)} → {code(after, 100)}\n"
    if not view.values_compared and view.parts:
        head += "\nThe values of weights were not compared.\n"
    left = _LONGEST - len(head)
    parts = [head]
    for part in view.parts:
        text = _diff_part(part)
        if len(text) + 1 > left:
            parts.append("The page of `ndld-flow diff --html` has more: the maximum length of a comment is reached.\n")
            break
        left -= len(text) + 1
        parts.append(text)
    return "\n".join(parts)


def _diff_part(part: DiffPart) -> str:
    # Renames come last, and a few of them are enough.
    matters = [row for row in part.rows if not row.is_aside]
    rows = [*matters[:_DIFF_ROWS], *(row for row in part.rows if row.is_aside)][
        : max(_DIFF_ASIDE, min(len(matters), _DIFF_ROWS))
    ]
    body = table(["", part.title.capitalize(), "", "What"], [_diff_cells(row) for row in rows])
    more = len(part.rows) + part.left_out - len(rows)
    if more:
        body += f"\n… {more:,} more\n"
    summary = f"{part.title}: {prose(part.words)}"
    return f"**{summary}**\n\n{body}" if len(part.rows) <= _DIFF_SHORT else details(summary, body)


def _diff_cells(row: DiffRow) -> list[str]:
    name = f"{code(row.was)} → {code(row.name)}" if row.was else code(row.name)
    scope = f" in {code(row.scope)}" if row.scope else ""
    descriptions = [*([prose(row.detail)] if row.detail else []), *map(_diff_line, row.lines)]
    return [f"`{row.sign}`", name + scope, code(row.kind), "<br>".join(descriptions)]


def _diff_line(line: DiffLine) -> str:
    before, after = ("none" if text is None else code(text, 100) or "empty" for text in (line.before, line.after))
    label = f"{prose(line.label)}: " if line.label else ""
    return f"{label}{before} → {after}{' (as a consequence)' if line.is_consequence else ''}"


_SPECIAL = re.compile(
    r"[\\`*\[\]<#!|~&@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=[\w/\u200b])|\bwww(?=\.)|^\s*/", re.IGNORECASE
)
"""Characters with a meaning within a line, and a slash at its beginning: in GitLab, `/merge` is a command
(https://docs.gitlab.com/user/project/quick_actions/)."""
_DIRECTION = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]")
"""Characters that change the writing direction or end a line."""
_ZERO_WIDTH_SPACE = "\u200b"

_NOT_IN_LABELS = re.compile("[^\\w.\N{HORIZONTAL ELLIPSIS}-]")
_MOST_BARS = 20

SIGNS = {
    "improved": "\N{WHITE HEAVY CHECK MARK}",
    "regressed": "\N{CROSS MARK}",
    "unchanged": "\N{HEAVY MINUS SIGN}",
    "inconclusive": "\N{WHITE QUESTION MARK ORNAMENT}",
    "incomparable": "\N{NO ENTRY SIGN}",
    "passed": "\N{WHITE HEAVY CHECK MARK}",
    "failed": "\N{CROSS MARK}",
}
"""Verdict or outcome -> sign, displayed with the word."""


def code(name: str, limit: int = 60) -> str:
    """Return a name as code, with the middle of a long one left out."""
    return f"<code>{_escaped(short_name(name, limit))}</code>" if name else ""


def prose(text: str, limit: int = 400) -> str:
    """Return a sentence on one line, without mentions, links and markup."""
    apart = re.sub(r"([@#:])(?=\w)", rf"\1{_ZERO_WIDTH_SPACE}", short_name(text, limit))
    return _escaped(apart)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of Markdown cells; the columns at positions `numbers` are right-aligned."""
    lines = [head, ["--:" if index in numbers else ":--" for index in range(len(head))], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def mermaid_bars(title: str, bars: Mapping[str, float], unit: str) -> str:
    """Return a bar chart that GitHub and GitLab draw (https://mermaid.js.org/syntax/xyChart.html); empty without a
    finite positive value. Texts have spaces for all characters but letters, digits, `.`, `_`, `-`, `…`; units keep `/`.
    """
    heading = _mark(title, 60)
    unit = re.sub(r"[^\w/%]", "", short_name(unit, 20))
    shown = {label: value for label, value in list(bars.items())[:_MOST_BARS] if math.isfinite(value) and value > 0}
    if not shown:
        return ""
    labels = ", ".join(f'"{_mark(label, 30)}"' for label in shown)
    values = ", ".join(map(_plain, shown.values()))
    lines = [
        "xychart-beta",
        f'    title "{heading}, {unit}"' if unit else f'    title "{heading}"',
        f"    x-axis [{labels}]",
        f'    y-axis "{unit}" 0 --> {_plain(max(shown.values()) * 1.1)}',
        f"    bar [{values}]",
    ]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def _mark(text: str, most: int) -> str:
    # Not removed: without its colon, `run:step` would be the name of a run that does not exist.
    return " ".join(_NOT_IN_LABELS.sub(" ", short_name(text, most)).split()) or "?"


def _plain(value: float) -> str:
    """Return four digits without an exponent, which Mermaid does not read."""
    return format(Decimal(f"{value:.4g}"), "f")


def details(summary: str, body: str) -> str:
    """Return a collapsed part; `summary` and `body` are Markdown."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def _escaped(text: str) -> str:
    shown = _DIRECTION.sub("\N{REPLACEMENT CHARACTER}", text)
    return _SPECIAL.sub(lambda match: "".join(f"&#{ord(letter)};" for letter in match[0]), shown)
