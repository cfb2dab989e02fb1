"""Check the subject of a commit's message: `python tests/support/commit_subject.py FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

_LONGEST = 72
_SEPARATE = 2
"""A body begins in the third line."""


def check(message: str) -> str:
    """Return what is wrong with a message; empty where nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if not subject.strip():
        return "the first line is the subject: it is empty"
    if len(subject) > _LONGEST:
        return f"the subject has {len(subject)} characters, at most {_LONGEST} are allowed: put the rest into the body"
    if subject.endswith("."):
        return "the subject ends with a full stop: leave it out"
    if len(lines) >= _SEPARATE and lines[1].strip():
        return "the second line is not empty: it separates the subject from the body"
    return ""


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1]).read_text(encoding="utf-8")) or 0)
