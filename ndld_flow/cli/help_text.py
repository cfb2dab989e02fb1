"""Help whose examples fit the terminal: click wraps paragraphs, and leaves the lines of examples as they are."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ndld_flow.base.lazy_pattern import lazy_pattern

_COLUMNS = lazy_pattern(r"(\s*\S.*?\S)\s{3,}(\S.*)")
"""A command, or a keyword, and its explanation."""
_VERBATIM = "\b"
"""Begins a paragraph whose lines click leaves as they are."""


class HelpFormatter(click.HelpFormatter):
    """A formatter that breaks long lines of examples before their explanation, or between words."""

    def write_text(self, text: str) -> None:
        width = max(self.width - self.current_indent, 20)
        paragraphs = text.split("\n\n")
        super().write_text("\n\n".join(_folded(each, width) if _VERBATIM in each else each for each in paragraphs))


class HelpContext(click.Context):
    """A context whose help fits the terminal."""

    formatter_class = HelpFormatter


def _folded(paragraph: str, width: int) -> str:
    return "\n".join(line for each in paragraph.split("\n") for line in _fold(each, width))


def _fold(line: str, width: int) -> Iterator[str]:
    """Yield a line of at most `width` columns, or its parts, the later ones indented."""
    if len(line) <= width:
        yield line
        return
    lead = " " * (len(line) - len(line.lstrip()) + 4)
    if parts := _COLUMNS.fullmatch(line):
        yield from _fold(parts[1], width)
        line = lead + parts[2]
    import textwrap

    yield from textwrap.wrap(
        line, width, subsequent_indent=lead, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
