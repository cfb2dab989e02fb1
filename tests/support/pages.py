"""The README and the pages in `docs/`, taken apart: blocks of code, tables, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r"^(?:<!-- not run: ([^\n]+) -->\n)?( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^\2```$", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"\s#\s.*")  # to a shell, the `#` of `sweep-cpu#1` begins no comment


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: str
    language: str
    title: str
    """The file that the reader writes; empty for a part of one."""
    text: str
    not_run: str = ""
    """Why the tests do not run its commands, as the page's source says; a block of `sh` has a reason."""

    @property
    def is_for_ci(self) -> bool:
        """True for a workflow of GitHub, or a pipeline of GitLab."""
        return self.title.startswith((".github/", ".gitlab"))

    def commands(self) -> list[str]:
        """Return the lines of a block of commands, with their comments."""
        return [line for line in self.text.splitlines() if line.strip()] if self.language == "bash" else []


def page_paths() -> list[Path]:
    """Return the pages that people wrote: three of the root, then those of the documentation by name."""
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(DOCS.rglob("*.md"))]


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks() -> list[Block]:
    """Return the blocks of code of all pages, in order."""
    return [
        Block(page_name(path), language, title, text, reason)
        for path in page_paths()
        for reason, _, language, title, text in _FENCE.findall(path.read_text())
    ]


def without_comment(command: str) -> str:
    return _COMMENT.sub("", command)


def without_code(text: str) -> str:
    """Return the text of a page without its blocks of code."""
    return _FENCE.sub("", text)


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the header and the rows of each table."""
    for match in re.finditer(r"^(\|.*\|)\n\|[-|: ]+\|\n((?:\|.*\|\n?)+)", without_code(text), re.MULTILINE):
        yield _cells(match[1]), [_cells(line) for line in match[2].splitlines()]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def codes(text: str) -> list[str]:
    """Return the inline code of a text."""
    return re.findall(r"`([^`\n]+)`", text)
