"""The outcomes of runs, of their steps and of the points of sweeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RunOutcome = Literal["passed", "failed", "inconclusive", "error", "bug", "killed", "interrupted", "running"]
Outcome = Literal["done", "reused", "failed", "inconclusive", "interrupted", "skipped"]
"""`failed`: its check failed, or, without a record, an error ended it; `interrupted`: it was running when the run
ended, or when the run was last recorded."""
PointOutcome = Literal["passed", "refused", "inconclusive", "failed"]
"""`passed`: all constraints hold and no step or gate failed. `refused`: one failed. `inconclusive`: none failed, but
one could not be decided. `failed`: an error ended it."""


@dataclass(frozen=True)
class Ending:
    """Headline, exit code and colour of an outcome."""

    headline: str
    """First word of the terminal's verdict and of the report."""
    exit_code: int
    tone: Literal["passed", "failed", "inconclusive"]
    """Colour of the headline."""
    sign: str
    """Sign in the page's title."""
    complete: bool = False
    """True if all necessary steps have finished: only such a run can be compared."""


ENDINGS: Mapping[RunOutcome, Ending] = {
    "passed": Ending("PASSED", 0, "passed", "✓", complete=True),
    "failed": Ending("FAILED", 1, "failed", "✕", complete=True),  # a check, a gate or the verdict of a step failed
    "inconclusive": Ending("INCONCLUSIVE", 4, "inconclusive", "?", complete=True),
    "error": Ending("ERROR", 2, "failed", "✕"),  # a step, or a library that it needs, cannot do what the recipe asks
    "bug": Ending("BUG", 3, "failed", "✕"),
    "killed": Ending("KILLED", 5, "failed", "✕"),  # a worker ended by a signal, or by a lack of memory
    "interrupted": Ending("INTERRUPTED", 130, "failed", "✕"),
    "running": Ending("RUNNING", 0, "inconclusive", "…"),  # or its process was killed before it could record its end
}


def is_complete(outcome: RunOutcome) -> bool:
    """Return whether a run has finished, with any verdict."""
    return ENDINGS[outcome].complete


def judge(*, failed: bool, undecided: bool = False) -> RunOutcome:
    """Return the outcome of a finished run: a failure takes precedence over an undecided check."""
    if failed:
        return "failed"
    return "inconclusive" if undecided else "passed"


def outcome_of_code(exit_code: int) -> RunOutcome:
    """Return the outcome of a run that an error with this exit code ended."""
    return next(
        (outcome for outcome, ending in ENDINGS.items() if ending.exit_code == exit_code and not ending.complete), "bug"
    )
