"""Results as HTML for notebooks: a verdict, a small table, and a link to the report.

Names come from strangers and are escaped. There are no scripts and no style sheets: notebooks remove them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from ndld_flow.base.quantities import ABSENT, MINUS, change, counted, milliseconds, quantity, share
from ndld_flow.base.text import short_name
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.records.comparison import Comparison, ProfileComparison
from ndld_flow.records.profile import Profile

_GOOD, _BAD, _OPEN = "#0a8f68", "#d55e00", "#b07800"
_COLOURS = {
    "PASSED": _GOOD,
    "improved": _GOOD,
    "FAILED": _BAD,
    "regressed": _BAD,
    "incomparable": _BAD,
    "INCONCLUSIVE": _OPEN,
    "inconclusive": _OPEN,
}
"""Readable on light and dark paper."""


def verdict_html(verdict: Sequence[str], report: str) -> str:
    """Return the lines of a verdict: the first as a heading, the others as a table of subject and finding."""
    word, _, rest = verdict[0].partition(" ")
    parted = (line.partition(" ") for line in verdict[1:])
    rows = [(subject, finding) for subject, _, finding in parted if subject != "report"]
    return _block(word, rest, [], rows, report)


def sentences_html(sentences: Sequence[str], report: str) -> str:
    """Return the sentences of a sweep's verdict: the first in bold, the others as lines."""
    lines = "".join(f"<p>{_text(sentence, 600)}</p>" for sentence in sentences[1:])
    return f"<div><p><b>{_text(sentences[0], 600)}</b></p>{lines}{_link(report)}</div>"


def comparison_html(comparison: Comparison, report: str) -> str:
    """Return the verdict of a comparison, and the metrics of the last candidate that have one."""
    titles = ["metric", *(subject.label for subject in comparison.subjects), "change", "95 % interval", "verdict"]
    rows = [row for compared in comparison.profiles for row in _metrics(compared, len(comparison.profiles) > 1)]
    return _block(comparison.verdict, comparison.why, titles, rows, report)


def profile_html(profile: Profile, report: str) -> str:
    """Return the latency of a profile, what bounds it, and its slowest layers."""
    found = triage(profile)
    headline = milliseconds(profile.latency.median_ms) if profile.latency_ms else counted(len(profile.layers), "layer")
    bound = f"median of {profile.label}, bound by {found.bound.word}" if profile.latency_ms else profile.label
    rows = [
        (layer.name, layer.type, layer.precision or "unknown", milliseconds(top.median_ms), share(top.share))
        for top in found.top
        for layer in (profile.layers[top.layer],)
    ]
    return _block(headline, bound, ["layer", "type", "precision", "median", "share"] if rows else [], rows, report)


def _metrics(compared: ProfileComparison, several: bool) -> Iterable[Sequence[str]]:
    last = len(compared.subjects) - 1
    judged = {
        verdict.metric: verdict for verdict in compared.verdicts if (verdict.base, verdict.candidate) == (0, last)
    }
    for metric in (metric for metric in compared.metrics if metric.metric in judged):
        verdict = judged[metric.metric]
        name = f"{compared.name}: {metric.metric}" if several else metric.metric
        values = [ABSENT if value is None else quantity(value, metric.unit) for value in metric.values]
        spread = f"{change(1, verdict.low)} \N{HORIZONTAL ELLIPSIS} {change(1, verdict.high)}"
        interval = (spread if verdict.interval_is_known else "no interval") if verdict.low < verdict.high else ""
        yield [name, *values, change(1, verdict.ratio), interval, verdict.verdict]


def _block(word: str, rest: str, titles: Sequence[str], rows: Iterable[Sequence[str]], report: str) -> str:
    colour = _COLOURS.get(word, "inherit")
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    lines = "".join(
        f'<tr><th style="text-align:left">{_text(row[0])}</th>{"".join(_cell(cell, titles) for cell in row[1:])}</tr>'
        for row in rows
    )
    table = f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{lines}</tbody></table>" if lines else ""
    return f'<div><p><b style="color:{colour}">{_text(word)}</b> {_text(rest, 600)}</p>{table}{_link(report)}</div>'


def _link(report: str) -> str:
    """Return a link relative to the notebook, which servers of notebooks can open; absolute outside its folder."""
    if not report:
        return ""
    path, here = Path(report).absolute(), Path.cwd()
    address = quote(os.path.relpath(path, here)) if path.is_relative_to(here) else path.as_uri()
    return f'<p><a href="{escape(address)}">{_text(report)}</a></p>'


def _cell(text: str, titles: Sequence[str]) -> str:
    """Return a cell; numbers in a table with titles are aligned to the right."""
    is_number = bool(titles) and (text[:1].isdigit() or text[:1] in ("+", MINUS, "\N{PLUS-MINUS SIGN}"))
    side = "right" if is_number else "left"
    return f'<td style="text-align:{side}">{_text(text, 600)}</td>'


def _text(text: str, longest: int = 120) -> str:
    return escape(short_name(text, longest))
