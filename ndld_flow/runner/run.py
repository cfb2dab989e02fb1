"""Run or plan a recipe without a sweep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.load import load_recipe
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sources import find_models
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunStep, StepRecord
from ndld_flow.runner.conclude import command_of, find_equal_run, finish_run, make_id, note_progress, recording_failure
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.events import (
    Listener,
    Notice,
    RunFinished,
    RunStarted,
    ignore,
    wait_for_other_run,
)
from ndld_flow.runner.executors.executor import Executor, Task
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import (
    Decision,
    Planner,
    Unit,
    arrange_steps,
    plan_steps,
    previous_records,
    refuse_impossible_run,
)
from ndld_flow.runner.state import Request, RunState
from ndld_flow.runner.unit_work import clear_damage, describe_end, describe_start, gather_work, place_records, skip_step
from ndld_flow.store.kinds import Artifact


def plan_recipe(request: Request, listener: Listener = ignore) -> list[Decision]:
    """Decide for each step whether it would run, and why. Nothing is computed, but models may be downloaded."""
    Outputs(request.outputs).prepare()
    return plan_loaded(_load(request), request, listener)


def plan_loaded(recipe: Recipe, request: Request, listener: Listener = ignore) -> list[Decision]:
    """`plan_recipe` for a recipe that is loaded already."""
    with Outputs(request.outputs).store.locks.working():
        run = _open(recipe, request, listener)
        return plan_steps(run.planner, run.digests)


def run_recipe(request: Request, listener: Listener = ignore) -> RunFinished:
    """Run a recipe and write its run folder and report.

    Where all results exist, nothing runs and the event names the earlier run. Raises NdldFlowError, see base/errors.py;
    finished results stay in the store, and a run that has started leaves its folder.
    """
    Outputs(request.outputs).prepare()
    return run_loaded(_load(request), request, listener)


def run_loaded(recipe: Recipe, request: Request, listener: Listener = ignore) -> RunFinished:
    """`run_recipe` for a recipe that is loaded already."""
    outputs = Outputs(request.outputs)
    with explaining_disk(f"run of {request.recipe}", outputs.root), outputs.store.locks.working():
        outputs.store.locks.warn_once(lambda text: listener(Notice(text=text)))
        run = _open(recipe, request, listener)
        with recording_failure(run), explaining_disk(f"run of {request.recipe}", outputs.root):
            finished = _run(run, request)
    listener(finished)
    return finished


def _run(run: RunState, request: Request) -> RunFinished:
    run.listener(RunStarted(recipe=run.recipe.name, steps=tuple(step.name for step in run.recipe.steps)))
    refuse_impossible_run(run.recipe, run.planner, run.digests)
    with contextlib.ExitStack() as stack:
        _run_steps(run, cache(lambda: stack.enter_context(_open_executor(run.listener, request))))
    return find_equal_run(run) or finish_run(run)


def _load(request: Request) -> Recipe:
    store = Outputs(request.outputs).store
    with explaining_disk(f"recipe {request.recipe}", request.outputs):
        recipe = load_recipe(request.recipe, request.overrides, trust=request.trust, store=store)
    if recipe.file.sweep is not None:
        raise RequestError(
            f"{request.recipe} has a `sweep:`, so it is many runs. Use `api.sweep`, or remove it with the override "
            "`~sweep`."
        )
    return recipe


def _open(recipe: Recipe, request: Request, listener: Listener) -> RunState:
    started_at, start = datetime.now(UTC), time.perf_counter()
    outputs = Outputs(request.outputs)
    outputs.store.sweep_building()
    names = [step.name for step in recipe.steps]
    forced = choose_forced(request.force, names)
    models = find_models(recipe.models, outputs.store, lambda text: listener(Notice(text=text)))
    planner = Planner(recipe, outputs.store, _previous(outputs, recipe), forced)
    artifacts: dict[str, Artifact] = {name: model.artifact for name, model in models.items()}
    return RunState(
        recipe=recipe,
        outputs=outputs,
        planner=planner,
        models=models,
        listener=listener,
        started_at=started_at,
        start=start,
        artifacts=artifacts,
        id=make_id(started_at),
        command=command_of(request),
    )


def choose_forced(asked: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Return the names of the steps that `--force` means. Raises RequestError for an unknown step."""
    unknown = [name for name in asked if name not in (*names, "all")]
    if unknown:
        raise RequestError(
            f"--force {unknown[0]}: there is no such step; the steps are: {', '.join(names)}, and `all`."
        )
    return frozenset(names if "all" in asked else asked)


def _previous(outputs: Outputs, recipe: Recipe) -> dict[str, StepRecord]:
    latest = outputs.latest(recipe.name)
    try:
        return previous_records(read_run_record(latest) if latest is not None else None)
    except RequestError:
        return {}  # a run of another version gives no reasons, but must not stop this one


def _open_executor(listener: Listener, request: Request) -> contextlib.closing[Executor]:
    """Open the executor when it is first needed: importing it takes time that a fully reused run saves."""
    from ndld_flow.runner.executors.choose_executor import choose_executor

    return contextlib.closing(choose_executor(None, False, listener, request.trust))


def _run_steps(run: RunState, executor: Callable[[], Executor]) -> None:
    stopped_by = ""
    for unit in arrange_steps(run.recipe):
        run.at_work = unit
        done = _skip_unit(unit, stopped_by) if stopped_by else _run_unit(run, unit, executor)
        for step in done:
            run.done[step.name] = step
            run.listener(describe_end(step))
        if unit[0].step.stops_run and any(step.outcome == "failed" for step in done):
            stopped_by = unit[0].name
    run.at_work = ()


def _skip_unit(unit: Unit, stopped_by: str) -> list[RunStep]:
    return [skip_step(step, f"{stopped_by} failed") for step in unit]


def _run_unit(run: RunState, unit: Unit, executor: Callable[[], Executor]) -> list[RunStep]:
    start = time.perf_counter()
    decisions = run.planner.decide(unit, run.digests)
    if _all_reused(decisions):
        return _place_reused(run, decisions, start)
    keys = [(decision.key, decision.step.name) for decision in decisions]
    with run.planner.store.locks.hold_keys(keys, lambda name: run.listener(wait_for_other_run(name))):
        decisions = run.planner.decide(unit, run.digests)  # another run may have computed it while this one waited
        if _all_reused(decisions):
            return _place_reused(run, decisions, start)
        decisions = clear_damage(run, decisions)
        note_progress(run)
        for decision in decisions:
            run.listener(describe_start(decision))
        works = tuple(gather_work(run, decision) for decision in decisions)
        records = executor().submit(Task(works, held=True), run.planner.store).result()
    return place_records(run, decisions, records, "done", _share_s(start, decisions))


def _all_reused(decisions: Sequence[Decision]) -> bool:
    return all(decision.reused for decision in decisions)


def _place_reused(run: RunState, decisions: Sequence[Decision], start: float) -> list[RunStep]:
    records = [decision.record for decision in decisions if decision.record]
    return place_records(run, decisions, records, "reused", _share_s(start, decisions))


def _share_s(start: float, decisions: Sequence[Decision]) -> float:
    return (time.perf_counter() - start) / len(decisions)
