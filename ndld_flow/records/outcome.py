"""How a run, or a sweep, ends: the word that people read and the program's exit code, in one table.

Everything that prints a headline, lists runs or exits with a code looks it up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RunOutcome = Literal["passed", "failed", "inconclusive", "error", "bug", "killed", "interrupted", "running"]


@dataclass(frozen=True)
class Ending:
    """How one outcome is shown."""

    headline: str
    """First word of the terminal's verdict and of the report."""
    exit_code: int
    tone: Literal["passed", "failed", "inconclusive"]
    """Colour of the headline."""
    sign: str
    """Of the page's title."""
    complete: bool = False
    """Whether every step that had to run came to its end: only such a run is a base to compare with."""


ENDINGS: Mapping[RunOutcome, Ending] = {
    "passed": Ending("PASSED", 0, "passed", "✓", complete=True),
    "failed": Ending("FAILED", 1, "failed", "✕", complete=True),  # a check, a gate or a step's own verdict failed
    "inconclusive": Ending("INCONCLUSIVE", 4, "inconclusive", "?", complete=True),
    "error": Ending("ERROR", 2, "failed", "✕"),  # a step, or what it needs, cannot do what the recipe asks
    "bug": Ending("BUG", 3, "failed", "✕"),
    "killed": Ending("KILLED", 5, "failed", "✕"),  # a worker ended by a signal, or by a lack of memory
    "interrupted": Ending("INTERRUPTED", 130, "failed", "✕"),
    "running": Ending("RUNNING", 0, "inconclusive", "…"),  # or its program was killed before it could record that
}


def is_complete(outcome: RunOutcome) -> bool:
    """Return whether a run came to its end, with whatever verdict."""
    return ENDINGS[outcome].complete


def judge(*, failed: bool, undecided: bool = False) -> RunOutcome:
    """Return the outcome of a run whose steps are all done: a failure counts more than what stayed undecided."""
    if failed:
        return "failed"
    return "inconclusive" if undecided else "passed"


def outcome_of_code(exit_code: int) -> RunOutcome:
    """Return the outcome of a run that an error with this exit code ended."""
    return next(
        (outcome for outcome, ending in ENDINGS.items() if ending.exit_code == exit_code and not ending.complete), "bug"
    )
