"""Runs in progress: open them, gather the work of their steps, and place the results."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from blake3 import blake3

from ndld_flow.base.errors import ModelError, Problem, RecipeError, RequestError
from ndld_flow.base.text import visible_text
from ndld_flow.recipe.recipe import ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.records.run_record import Outcome, RunStep, StepRecord
from ndld_flow.runner.events import Listener, Notice, StepFinished, StepLogged, StepStarted, describe_progress
from ndld_flow.runner.execute import Work
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Decision, Planner, Unit
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.kinds import Artifact
from ndld_flow.store.store import Store


@dataclass
class RunState:
    """A run while it is running."""

    recipe: Recipe
    outputs: Outputs
    planner: Planner
    models: dict[str, FoundModel]
    """Models by their names in the recipe."""
    listener: Listener
    started_at: datetime
    start: float
    """`time.perf_counter()` at the start."""
    id: str
    """The name of its folder, `<utc time>-<short id>`."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    done: dict[str, RunStep] = field(default_factory=dict)
    """Finished steps by name, in the order in which they finished."""
    command: tuple[str, ...] = ()
    at_work: Unit = ()
    """The steps that are being decided, computed or placed."""
    logs: dict[str, deque[str]] = field(default_factory=dict)
    """Step -> the last lines of its log, of steps that were computed in this run."""
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed when the run has ended, for whatever reason."""
    opened: bool = False
    """True if its folder exists."""

    @property
    def steps(self) -> tuple[RunStep, ...]:
        """Return the finished steps, in the recipe's order."""
        return tuple(self.done[step.name] for step in self.recipe.steps if step.name in self.done)

    @property
    def digests(self) -> Mapping[str, str | None]:
        return {name: artifact.digest for name, artifact in self.artifacts.items()}

    @property
    def paths(self) -> Mapping[str, Path]:
        """Return name -> file of the recipe's models and of finished steps."""
        return {name: artifact.path for name, artifact in self.artifacts.items()}


@dataclass
class RunOpener:
    """Opens the runs of a request: one, or one for each point of a sweep."""

    outputs: Outputs
    listener: Listener
    forced: frozenset[str] = frozenset()
    """Names of the steps that run even if nothing changed."""
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step, where that is not this one."""
    known: dict[str, StepRecord] = field(default_factory=dict)
    """Every record that a point of this sweep has used, by key: computed by it, or found intact."""
    models: dict[ModelSource, FoundModel] = field(default_factory=dict)
    """The models of all runs. Each is read once."""

    @property
    def store(self) -> Store:
        return self.outputs.store

    def open_run(self, recipe: Recipe, previous: Mapping[str, StepRecord] | None = None) -> RunState:
        """Open a run; `previous` has the records of the recipe's latest run. Raises as `find_model` does."""
        started_at, start = datetime.now(UTC), time.perf_counter()
        planner = Planner(recipe, self.store, previous or {}, self.forced, self.known, self.machine_of)
        models = self._find_models(recipe)
        _check_feedback(recipe, models)
        artifacts: dict[str, Artifact] = {name: model.artifact for name, model in models.items()}
        run_id = make_id(started_at)
        return RunState(recipe, self.outputs, planner, models, self.listener, started_at, start, run_id, artifacts)

    def check_models(self) -> None:
        """Raise ModelError when a model has changed since the sweep started."""
        for source, model in self.models.items():
            if self._find_model(source).record.digest != model.record.digest:
                raise ModelError(
                    f"model {source.source}: it changed while the sweep ran, so the inputs of the last points are "
                    "unknown. Run again; if you restore the earlier contents, with `--force all`."
                )

    def _find_models(self, recipe: Recipe) -> dict[str, FoundModel]:
        named = {}
        for name, source in recipe.models.items():
            model = self.models.get(source) or self.models.setdefault(source, self._find_model(source))
            named[name] = replace(model, artifact=replace(model.artifact, label=name))
        return named

    def _find_model(self, source: ModelSource) -> FoundModel:
        return find_model(source, self.store, lambda text: self.listener(Notice(text=text)))


def _check_feedback(recipe: Recipe, models: Mapping[str, FoundModel]) -> None:
    """Raise RecipeError for states that no output of a model can feed.

    Only models of the recipe are known before anything runs; a step's result is checked when it runs.
    """
    for step in recipe.steps:
        used = step.used_inputs(recipe.file.inputs) if step.type.cls.runs_sequences else {}
        if not any(spec.fed_from for spec in used.values()):
            continue
        from ndld_flow.models.files import model_inputs, model_outputs
        from ndld_flow.samples.sequences import check_feedback, find_feedback

        for model in (models[name] for name in step.own_reads.values() if name in models):
            inputs, outputs = (read(model.artifact.path) for read in (model_inputs, model_outputs))
            known = {spec.name for spec in inputs}
            feedback = {name: output for name, output in find_feedback(used).items() if name in known}
            mistakes = check_feedback(feedback, inputs, outputs, model.artifact.label)
            problems = [Problem(str(recipe.path), f"inputs.{name}.from", what, hint) for name, what, hint in mistakes]
            if problems:
                raise RecipeError(problems)


def choose_forced(requested: Sequence[str], recipe: Recipe) -> frozenset[str]:
    """Return the names of the steps that `--force` selects. Raises RequestError for an unknown step."""
    names = [step.name for step in recipe.steps]
    unknown = [name for name in requested if name not in (*names, "all")]
    if unknown:
        raise RequestError(
            f"--force {unknown[0]}: there is no such step; the steps are: {', '.join(names)}, and `all`."
        )
    return frozenset(names if "all" in requested else requested)


def make_id(started_at: datetime) -> str:
    """Return the UTC time and six hex digits that distinguish runs of the same second."""
    apart = blake3(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:6]
    return f"{started_at:%Y%m%dT%H%M%SZ}-{apart}"


LAST_LINES = 40
"""Number of lines of a failed step's log that are recorded."""


def gather_work(run: RunState, decision: Decision, name: str = "") -> Work:
    """Return the work of a step; all its inputs exist. `name` replaces the step's in events, its log and errors."""
    step, parts = decision.step, decision.parts
    shown = name or step.name
    assert parts is not None  # all inputs of a step are computed before the step
    run.planner.store.locks.use([decision.key])

    def progress(done: int, total: int, what: str) -> None:
        run.listener(describe_progress(shown, done, total, hide_credentials(what)))

    last_lines = run.logs[step.name] = deque[str](maxlen=LAST_LINES)

    def logged(line: str) -> None:
        last_lines.append(line)
        run.listener(StepLogged(name=shown, text=hide_credentials(visible_text(line))))

    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    inputs = run.recipe.file.inputs if step.inputs is None else step.inputs
    return Work(replace(step, name=shown), parts, artifacts, inputs, progress, run.recipe.name, logged)


def set_damaged_aside(step: str, key: str, store: Store, listener: Listener) -> str:
    """Set a damaged result of a step aside before it is recomputed, and report that; return a short description."""
    damaged = store.clear(key)
    if damaged is None:
        return ""
    listener(
        Notice(
            text=f"the result of step {step} was damaged ({damaged.damage}); it was moved to {damaged.place} "
            "and is recomputed",
            warning=True,
        )
    )
    return f"{damaged.damage}; set aside as {damaged.place.name}"


def clear_damage(run: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Set the damaged results of these decisions aside, and add that to their details. Their keys must be locked."""
    cleared = []
    for decision in decisions:
        detail = set_damaged_aside(decision.step.name, decision.key, run.planner.store, run.listener)
        cleared.append(replace(decision, detail=detail) if detail else decision)
    return cleared


def place_records(
    run: RunState, decisions: Sequence[Decision], records: Sequence[StepRecord], outcome: Outcome, wall_s: float
) -> list[RunStep]:
    """Make artifacts readable for later steps; return the finished steps, each with a duration of `wall_s`."""
    placed = []
    for decision, record in zip(decisions, records, strict=True):
        step = decision.step
        kind = step.type.cls.kinds()[1]
        folder = run.planner.store.object_folder(record.artifact.digest)
        run.artifacts[step.name] = kind(folder / kind.main, step.name, record.artifact.digest)
        placed.append(
            RunStep(
                name=step.name,
                step=step.type.name,
                outcome=outcome if record.passed else "inconclusive" if record.inconclusive else "failed",
                reason=decision.reason.text,
                detail=decision.detail,
                wall_s=wall_s,
                record=record,
            )
        )
    return placed


def skip_step(step: RecipeStep, reason: str) -> RunStep:
    """Return the entry of a step that does not run."""
    return RunStep(name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0)


def describe_start(decision: Decision) -> StepStarted:
    step = decision.step
    return StepStarted(name=step.name, step=step.type.name, reason=decision.reason.text, detail=decision.detail)


def describe_end(step: RunStep) -> StepFinished:
    return StepFinished(
        name=step.name,
        step=step.step,
        outcome=step.outcome,
        reason=step.reason,
        detail=step.detail,
        summary=step.record.summary if step.record else "",
        wall_s=step.wall_s,
        metrics=step.record.metrics if step.record else {},
    )
