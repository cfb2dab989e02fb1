"""GitHub's Markdown from texts that strangers wrote.

Names stand in `<code>`: there GitHub makes no mentions, no links to issues and no emoji. Whatever could mean something
to Markdown is written as a character reference, which Markdown takes for plain text
(https://github.github.com/gfm/#entity-and-numeric-character-references).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ndld_flow.base.text import short_name

_SPECIAL = re.compile(
    r"[\\`*\[\]<#!|~&@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=[\w/\u200b])|\bwww(?=\.)", re.IGNORECASE
)
"""What may begin or end something, on a line that begins with something else."""
_DIRECTION = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]")
"""Characters that turn the direction of what follows, or end a line for some."""
_ZERO_WIDTH_SPACE = "\u200b"


def code(name: str, limit: int = 60) -> str:
    """Return a name as code, its middle left out where it is long."""
    return f"<code>{_escaped(short_name(name, limit))}</code>" if name else ""


def prose(text: str, limit: int = 400) -> str:
    """Return a sentence that may hold names: on one line, without mentions, links and markup."""
    apart = re.sub(r"([@#:])(?=\w)", rf"\1{_ZERO_WIDTH_SPACE}", short_name(text, limit))
    return _escaped(apart)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are Markdown already; columns at the positions `numbers` stand to the right."""
    lines = [head, ["--:" if place in numbers else ":--" for place in range(len(head))], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def details(summary: str, body: str) -> str:
    """Return a part that is opened by a click; `summary` and `body` are Markdown already."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def _escaped(text: str) -> str:
    shown = _DIRECTION.sub("\N{REPLACEMENT CHARACTER}", text)
    return _SPECIAL.sub(lambda found: "".join(f"&#{ord(letter)};" for letter in found[0]), shown)
