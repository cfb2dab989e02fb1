"""Run a recipe: a short loop over its steps."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ndld_flow.errors import RequestError
from ndld_flow.recipe.load import load_recipe
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeStep
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.step_record import Outcome, RunStep, StepRecord
from ndld_flow.report.run_folder import read_run_record
from ndld_flow.runner.conclude import find_equal_run, finish_run
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.events import (
    Listener,
    RunFinished,
    RunStarted,
    Said,
    StepFinished,
    StepProgressed,
    StepStarted,
    StepWaits,
    ignore,
)
from ndld_flow.runner.execute import Work, execute_step
from ndld_flow.runner.plan import Decision, Planner, plan_steps, previous_records
from ndld_flow.runner.runs import Outputs
from ndld_flow.runner.state import Request, RunState


def plan_recipe(request: Request, listener: Listener = ignore) -> list[Decision]:
    """Say for each step whether it would run, and why. Nothing is computed, but the model is fetched if it must be."""
    outputs = Outputs(request.outputs)
    outputs.prepare()
    run = _open(request, outputs, listener)
    return plan_steps(run.planner, run.model.record.digest)


def run_recipe(request: Request, listener: Listener = ignore) -> RunFinished:
    """Run a recipe and write its run folder and report.

    Where everything is there already, nothing is done and the earlier run is named. Raises NdldFlowError as errors.py
    tells; what was finished before stays in the store.
    """
    outputs = Outputs(request.outputs)
    outputs.prepare()
    with explaining_disk(f"run of {request.recipe}", outputs.root), outputs.store.working():
        run = _open(request, outputs, listener)
        listener(RunStarted(recipe=run.recipe.name, steps=tuple(step.name for step in run.recipe.steps)))
        _do_steps(run)
        finished = find_equal_run(run) or finish_run(run, request)
    listener(finished)
    return finished


def _open(request: Request, outputs: Outputs, listener: Listener) -> RunState:
    started_at, start = datetime.now(UTC), time.perf_counter()
    outputs.store.sweep_building()
    recipe = load_recipe(request.recipe, request.overrides, trust=request.trust, store=outputs.store)
    names = [step.name for step in recipe.steps]
    unknown = [name for name in request.force if name not in (*names, "all")]
    if unknown:
        raise RequestError(f"--force {unknown[0]}: there is no such step; there are: {', '.join(names)}, and `all`.")
    forced = frozenset(names if "all" in request.force else request.force)
    model = find_model(recipe.model, outputs.store, lambda text: listener(Said(text=text)))
    planner = Planner(recipe, outputs.store, _previous(outputs, recipe), forced)
    return RunState(recipe, outputs, planner, model, listener, started_at, start, {SOURCE: model.artifact})


def _previous(outputs: Outputs, recipe: Recipe) -> dict[str, StepRecord]:
    latest = outputs.latest(recipe.name)
    try:
        return previous_records(read_run_record(latest) if latest is not None else None)
    except RequestError:
        return {}  # a run of another version explains nothing; it is no reason to stop


def _do_steps(run: RunState) -> None:
    stopped_by = ""
    for step in run.recipe.steps:
        done = _skip(step, stopped_by) if stopped_by else _do_step(run, step)
        run.steps.append(done)
        run.listener(_tell(done))
        if done.outcome == "failed" and step.step.stops_run:
            stopped_by = step.name


def _do_step(run: RunState, step: RecipeStep) -> RunStep:
    start = time.perf_counter()
    decision = run.planner.decide(step, run.digests)
    if decision.reused:
        return _reuse(run, decision, start)
    if run.planner.store.is_held(decision.key):
        run.listener(StepWaits(name=step.name, waits_for="another run computes this step"))
    with run.planner.store.hold(decision.key):
        again = run.planner.decide(step, run.digests)  # another run may have made it while this one waited
        if again.reused:
            return _reuse(run, again, start)
        run.listener(
            StepStarted(name=step.name, step=step.type.name, reason=decision.reason.text, detail=decision.detail)
        )
        record = execute_step(_gather(run, decision), run.planner.store)
    return _place(run, decision, record, start)


def _gather(run: RunState, decision: Decision) -> Work:
    step, parts = decision.step, decision.parts
    assert parts is not None  # everything a step reads is made before it

    def progress(done: int, total: int, what: str) -> None:
        run.listener(StepProgressed(name=step.name, done=done, total=total, what=what))

    artifacts = {key: run.artifacts[name] for key, name in step.reads.items()}
    return Work(step, parts, artifacts, run.recipe.file.inputs, progress)


def _reuse(run: RunState, decision: Decision, start: float) -> RunStep:
    assert decision.record is not None  # that is what reused means
    return _place(run, decision, decision.record, start)


def _place(run: RunState, decision: Decision, record: StepRecord, start: float) -> RunStep:
    """Make a step's artifact readable for later steps, and note how it came to be."""
    step = decision.step
    kind = step.type.cls.kinds()[1]
    folder = run.planner.store.object_folder(record.artifact.digest)
    run.artifacts[step.name] = kind(folder / kind.main, step.name, record.artifact.digest)
    outcome: Outcome = "reused" if decision.reused else "done"
    return RunStep(
        name=step.name,
        step=step.type.name,
        outcome=outcome if record.passed else "failed",
        reason=decision.reason.text,
        detail=decision.detail,
        wall_s=time.perf_counter() - start,
        record=record,
    )


def _skip(step: RecipeStep, stopped_by: str) -> RunStep:
    reason = f"{stopped_by} said no"
    return RunStep(name=step.name, step=step.type.name, outcome="skipped", reason=reason, wall_s=0.0)


def _tell(step: RunStep) -> StepFinished:
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
