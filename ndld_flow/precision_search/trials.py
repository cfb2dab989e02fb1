"""Trials of a precision search: written, run, judged, and never done twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.base.errors import ModelError
from ndld_flow.precision_search.attempts import Attempt, Kept, Outcome
from ndld_flow.precision_search.judging import Judge, Judged
from ndld_flow.precision_search.reducing import Reducer
from ndld_flow.precision_search.remembered import Remembered, TrialFile
from ndld_flow.records.precision_search import PrecisionSearch, Trial


@dataclass
class Trials:
    """The oracle of a search."""

    reducer: Reducer
    judge: Judge
    file: TrialFile
    scratch: Path
    done: dict[Kept, Remembered] = field(default_factory=dict)
    before: Mapping[Kept, Remembered] = field(default_factory=dict)
    """Those of an earlier search that did not end."""

    def try_keeping(self, kept: Kept) -> Outcome:
        """What keeping these nodes comes to."""
        if kept not in self.done:
            self.done[kept] = self.before[kept] if kept in self.before else self._do(kept)
        return self.outcome(self.done[kept].judged)

    def outcome(self, judged: Judged) -> Outcome:
        """As the bounds see it."""
        return Outcome(self.judge.bounds.passed(judged), self.judge.bounds.score(judged))

    def metrics(self, kept: Kept) -> dict[str, float]:
        """Of the worst output."""
        return self.judge.bounds.worst(self.done[kept].judged)

    def record(self, attempt: Attempt) -> Trial:
        """What is told of an attempt."""
        known = self.done[attempt.kept]
        return Trial(
            number=attempt.number,
            phase=attempt.phase,
            what=attempt.what,
            kept_count=len(attempt.kept),
            kept=tuple(sorted(attempt.kept)),
            metrics=self.metrics(attempt.kept),
            passed=attempt.outcome.passed,
            wall_s=known.wall_s,
            remembered=attempt.kept in self.before,
            trouble=known.judged.trouble,
        )

    def verify(self, search: PrecisionSearch, kept: Kept) -> Trial:
        """Convert once more, as the step that uses the result will, and check that."""
        started = time.monotonic()
        path = self.scratch / "verified.onnx"
        self.reducer.write_found(search, path)
        judged = self.judge.judge(path)
        return Trial(
            number=len(search.trials) + 1,
            phase="verify",
            what="converted as the step that uses it does",
            kept_count=len(kept),
            kept=tuple(sorted(kept)),
            metrics=self.judge.bounds.worst(judged),
            passed=self.judge.bounds.passed(judged),
            wall_s=time.monotonic() - started,
            trouble=judged.trouble,
        )

    def _do(self, kept: Kept) -> Remembered:
        started = time.monotonic()
        path = self.scratch / "tried.onnx"
        try:
            self.reducer.write(kept, path)
            judged = self.judge.judge(path)
        except ModelError as error:
            judged = Judged(trouble=str(error))
        done = Remembered(judged, time.monotonic() - started)
        self.file.add(kept, done)
        return done
