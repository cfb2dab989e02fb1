"""Write untrusted texts as Markdown of GitHub and GitLab.

Names are in `<code>`, where GitHub creates no mentions, links to issues or emoji. Characters with a meaning in Markdown
are written as character references, which Markdown treats as plain text
(https://github.github.com/gfm/#entity-and-numeric-character-references).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ndld_flow.base.text import short_name

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
    heading = _label(title, 60)
    unit = re.sub(r"[^\w/%]", "", short_name(unit, 20))
    shown = {label: value for label, value in list(bars.items())[:_MOST_BARS] if math.isfinite(value) and value > 0}
    if not shown:
        return ""
    labels = ", ".join(f'"{_label(label, 30)}"' for label in shown)
    values = ", ".join(map(_plain, shown.values()))
    lines = [
        "xychart-beta",
        f'    title "{heading}, {unit}"' if unit else f'    title "{heading}"',
        f"    x-axis [{labels}]",
        f'    y-axis "{unit}" 0 --> {_plain(max(shown.values()) * 1.1)}',
        f"    bar [{values}]",
    ]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def _label(text: str, most: int) -> str:
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
