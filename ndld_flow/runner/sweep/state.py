"""What the points of a sweep share while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ndld_flow.base.errors import ModelError
from ndld_flow.recipe.recipe import ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.records.step_record import StepRecord
from ndld_flow.records.sweep import Sitting
from ndld_flow.runner.events import Listener, PointFinished, Said, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Executor
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Decision, Planner
from ndld_flow.runner.reasons import Reason
from ndld_flow.runner.state import RunState
from ndld_flow.runner.sweep.judge import Goals, judge_point
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.runner.unit_work import place_records, tell_end
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_credentials
from ndld_flow.store.store import Store


@dataclass
class Desk:
    """What the points of a sweep share while it goes on."""

    outputs: Outputs
    executor: Executor
    listener: Listener
    goals: Goals = field(default_factory=Goals)
    section: SweepSection = field(default_factory=SweepSection)
    machine_of: Callable[[RecipeStep], str] | None = None
    """The fingerprint of the machine that would do a step, where that is not this one."""
    forced: frozenset[str] = frozenset()
    again: str = ""
    """What tells this measuring of the same points from an earlier one; empty the first time."""
    known: dict[str, StepRecord] = field(default_factory=dict)
    """Every record that a point of this sweep has used, by key: made by it, or found intact."""
    computed: set[str] = field(default_factory=set)
    """Keys of the records that this sweep made."""
    sittings: list[Sitting] = field(default_factory=list)
    models: dict[ModelSource, FoundModel] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.outputs.store

    def limit_s(self, step: str) -> float | None:
        """Seconds that a step may take; None: as long as it likes."""
        limit_ms = self.section.timeout_ms(step)
        return None if limit_ms is None else limit_ms / 1e3

    def open_run(self, recipe: Recipe) -> RunState:
        """A point's recipe as a run that can be advanced. Raises what finding its models raises."""
        planner = Planner(recipe, self.store, {}, self.forced, self.known, self.machine_of)
        models = self._find_models(recipe)
        artifacts = {name: model.artifact for name, model in models.items()}
        started_at, start = datetime.now(UTC), time.perf_counter()
        return RunState(recipe, self.outputs, planner, models, self.listener, started_at, start, dict(artifacts))

    def _find_models(self, recipe: Recipe) -> dict[str, FoundModel]:
        """Each model is looked for once in a sweep: it does not change under it."""
        found = {}
        for name, source in recipe.models.items():
            if source not in self.models:
                self.models[source] = find_model(source, self.store, lambda text: self.listener(Said(text=text)))
            model = self.models[source]
            found[name] = replace(model, artifact=replace(model.artifact, label=name))
        return found

    def check_models(self) -> None:
        """Raise ModelError when a model is no longer what it was when this sweep began."""
        for source, found in self.models.items():
            now = find_model(source, self.store, lambda text: self.listener(Said(text=text)))
            if now.record.digest != found.record.digest:
                raise ModelError(
                    f"model {source.source}: it has changed while the sweep ran, so what the last points read is not "
                    "known. Run again; should the earlier contents come back, with `--force all`."
                )

    def place_made(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point what was just made for it."""
        self.computed |= {record.key for record in records}
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            point.add(place_records(point.run, [decision], [record], "done", record.wall_s))

    def place_found(self, point: PointRun, decisions: Sequence[Decision], records: Sequence[StepRecord]) -> None:
        """Give a point what was there: made for another point, or before this sweep."""
        self.known |= {record.key: record for record in records}
        for decision, record in zip(decisions, records, strict=True):
            reason = Reason.SHARED if record.key in self.computed else Reason.REUSED
            found = replace(decision, reason=reason, detail="")
            point.add(place_records(point.run, [found], [record], "reused", 0.0))

    def name_work(self, work: Work, name: str) -> Work:
        """A step under a name that no other point's has: its log, its progress and its errors are told apart."""

        def progress(done: int, total: int, what: str) -> None:
            self.listener(describe_progress(name, done, total, hide_credentials(what)))

        return replace(work, step=replace(work.step, name=name), progress=progress)

    def tell_step(self, point: PointRun, step: RecipeStep) -> None:
        """Tell that a step of a point has ended, however."""
        done = point.run.done.get(step.name)
        if done is not None:
            self.listener(tell_end(done).model_copy(update={"name": f"{step.name}#{point.number}"}))

    def tell_finished(self, points: Sequence[PointRun]) -> None:
        """Tell of points that have just been finished."""
        for point in points:
            if point.finished and not point.told:
                point.told = True
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
