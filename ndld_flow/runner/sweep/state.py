"""The state that the points of a sweep share while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.records.run_record import StepRecord
from ndld_flow.records.sweep import MeasurementSession
from ndld_flow.runner.events import PointFinished, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Executor
from ndld_flow.runner.open_run import RunOpener
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.sweep.judge import Goals, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.unit_work import describe_end, place_records
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials


@dataclass(kw_only=True)
class SweepState(RunOpener):
    """The state that the points of a sweep share while it runs."""

    executor: Executor
    goals: Goals = field(default_factory=Goals)
    section: SweepSection = field(default_factory=SweepSection)
    again: str = ""
    """A mark in the keys of repeated measurements; empty the first time."""
    computed: set[str] = field(default_factory=set)
    """Keys of the records that this sweep computed."""
    sessions: list[MeasurementSession] = field(default_factory=list)

    def limit_s(self, step: str) -> float | None:
        """Return the time limit of a step in seconds; None without one."""
        limit_ms = self.section.timeout_ms(step)
        return None if limit_ms is None else limit_ms / 1e3

    def place_computed(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point results that were just computed for it."""
        self.computed |= {record.key for record in records}
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            point.add(place_records(point.run, [decision], [record], "done", record.wall_s))

    def place_found(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point existing results: computed for another point, or before this sweep."""
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            reason = Reason.SHARED if record.key in self.computed else Reason.REUSED
            found = replace(decision, reason=reason, detail="")
            point.add(place_records(point.run, [found], [record], "reused", 0.0))

    def name_work(self, work: Work, name: str) -> Work:
        """Return a step's work under a name that is unique in the sweep, for its log, progress and errors."""

        def progress(done: int, total: int, what: str) -> None:
            self.listener(describe_progress(name, done, total, hide_credentials(what)))

        return replace(work, step=replace(work.step, name=name), progress=progress)

    def report_step(self, point: PointRun, step: RecipeStep) -> None:
        """Report that a step of a point has ended, in whatever way."""
        done = point.run.done.get(step.name)
        if done is not None:
            self.listener(describe_end(done).model_copy(update={"name": f"{step.name}#{point.number}"}))

    def report_finished(self, points: Sequence[PointRun]) -> None:
        """Report points that have just finished."""
        for point in points:
            if point.finished and not point.reported:
                point.reported = True
                self.listener(self._describe_end(point))

    def _describe_end(self, point: PointRun) -> PointFinished:
        judgement = judge_point(point, self.goals)
        reached = zip(self.goals.objectives, judgement.objectives, strict=True)
        return PointFinished(
            number=point.number,
            values={name: hide_all_credentials(value) for name, value in point.point.items()},
            outcome=judgement.outcome,
            reason=judgement.reason,
            objectives={
                objective.text: objective.expression.evaluate(point.metrics)
                for objective, value in reached
                if value is not None
            },
            again=bool(self.again),
        )
