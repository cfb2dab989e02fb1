"""The search for the release in which a recipe began to fail."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ndld_flow.records.document import VERSIONS, Document, Record
from ndld_flow.records.measurement import Metric

TriedVerdict = Literal["good", "bad", "inconclusive", "skipped"]
"""`good`: the recipe passed; `bad`: it failed as with the bad end; `inconclusive`: a gate or a check remained
undecided; `skipped`: it could not run, or failed in another way."""


class TriedRelease(Record):
    """A release with which the recipe ran."""

    value: str
    verdict: TriedVerdict
    why: str
    """The gates, checks and errors that decided, or the reason why nothing did."""
    attempts: int = 1
    """Number of runs: an inconclusive one is measured again."""
    reused: bool = False
    """All results were those of earlier runs."""
    run: str = ""
    """`RECIPE/ID` of the last run; empty if it could not start."""
    report: str = ""
    """Path of its report."""
    metrics: dict[str, Metric] = {}
    """`STEP.METRIC` -> value, in the last run."""
    gates: dict[str, Metric] = {}
    """Gate -> the value of its left side."""


class VerdictChange(Record):
    """Two releases with different verdicts, and none between them with a verdict."""

    before: str
    after: str
    verdict: Literal["good", "bad"]
    """The verdict of `after`."""
    undecided: tuple[str, ...] = ()
    """Releases between the two without a verdict: the change may be in any of them."""


class Bisection(Document):
    """A search over releases."""

    document: Literal["bisection"] = "bisection"
    format_version: int = VERSIONS["bisection"]
    recipe: str
    key: str
    """The key of the recipe whose value varies, such as `environments.next.onnxruntime`."""
    package: str = ""
    """The package whose releases an index has listed; empty if the values were given."""
    values: tuple[str, ...]
    """From the good end to the bad one."""
    tried: tuple[TriedRelease, ...]
    """In the order of `values`."""
    failures: tuple[str, ...] = ()
    """The gates, checks and errors with which the bad end fails; only these make a release bad."""
    changes: tuple[VerdictChange, ...] = ()
    """One if only some of the values were tried: that this is the only change is then assumed."""
    assumes_one_change: bool = True
    """Some values between the ends have no verdict, so that other changes may be hidden there."""
    problem: str = ""
    """The reason why nothing was searched, such as a good end that fails; empty if something was."""
    started_at: datetime
    wall_s: float

    @property
    def exit_code(self) -> int:
        """0 if every change is known exactly, 4 if a verdict is missing, 2 if an end is not as claimed."""
        missing = any(each.verdict in ("inconclusive", "skipped") for each in self.tried)
        if self.problem:
            return 4 if any(each.verdict == "inconclusive" for each in self.tried) else 2
        return 4 if missing and any(change.undecided for change in self.changes) else 0
