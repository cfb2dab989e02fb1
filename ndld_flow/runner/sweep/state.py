"""The state that the points of a sweep share while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ndld_flow.base.errors import ModelError
from ndld_flow.recipe.recipe import ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.records.run_record import StepRecord
from ndld_flow.records.sweep import MeasurementSession
from ndld_flow.runner.events import Listener, Notice, PointFinished, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Executor
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Decision, Planner
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.state import RunState
from ndld_flow.runner.sweep.judge import Goals, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.unit_work import describe_end, place_records
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials
from ndld_flow.store.store import Store


@dataclass
class SweepState:
    """The state that the points of a sweep share while it runs."""

    outputs: Outputs
    executor: Executor
    listener: Listener
    goals: Goals = field(default_factory=Goals)
    section: SweepSection = field(default_factory=SweepSection)
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step, where that is not this one."""
    forced: frozenset[str] = frozenset()
    again: str = ""
    """A mark in the keys of repeated measurements; empty the first time."""
    known: dict[str, StepRecord] = field(default_factory=dict)
    """Every record that a point of this sweep has used, by key: computed by it, or found intact."""
    computed: set[str] = field(default_factory=set)
    """Keys of the records that this sweep computed."""
    sessions: list[MeasurementSession] = field(default_factory=list)
    models: dict[ModelSource, FoundModel] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.outputs.store

    def limit_s(self, step: str) -> float | None:
        """Return the time limit of a step in seconds; None without one."""
        limit_ms = self.section.timeout_ms(step)
        return None if limit_ms is None else limit_ms / 1e3

    def open_run(self, recipe: Recipe) -> RunState:
        """Open the run of a point's recipe. Raises as `find_model` does."""
        planner = Planner(recipe, self.store, {}, self.forced, self.known, self.machine_of)
        models = self._find_models(recipe)
        artifacts = {name: model.artifact for name, model in models.items()}
        started_at, start = datetime.now(UTC), time.perf_counter()
        return RunState(recipe, self.outputs, planner, models, self.listener, started_at, start, dict(artifacts))

    def _find_models(self, recipe: Recipe) -> dict[str, FoundModel]:
        """Return the recipe's models. Each is read once in a sweep."""
        found = {}
        for name, source in recipe.models.items():
            if source not in self.models:
                self.models[source] = find_model(source, self.store, lambda text: self.listener(Notice(text=text)))
            model = self.models[source]
            found[name] = replace(model, artifact=replace(model.artifact, label=name))
        return found

    def check_models(self) -> None:
        """Raise ModelError when a model has changed since the sweep started."""
        for source, found in self.models.items():
            now = find_model(source, self.store, lambda text: self.listener(Notice(text=text)))
            if now.record.digest != found.record.digest:
                raise ModelError(
                    f"model {source.source}: it changed while the sweep ran, so the inputs of the last points are "
                    "unknown. Run again; if you restore the earlier contents, with `--force all`."
                )

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
