"""Load the recipe of a request, and run or plan it, or its sweep. Plans import nothing that computes or writes runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import first_of
from ndld_flow.execution.keys import HIDDEN_VALUES, describe_key
from ndld_flow.execution.request import Request, recipe_of
from ndld_flow.execution.ssh.targets import open_targets
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runner.check_inputs import refuse_wrong_inputs
from ndld_flow.runner.plan import Decision, look_ahead, plan_steps
from ndld_flow.runner.run_state import RunOpener, RunState, choose_forced, open_cache
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import digest_json

if TYPE_CHECKING:
    from ndld_flow.execution.events import RunFinished, SweepFinished
    from ndld_flow.execution.listener import Listener
    from ndld_flow.execution.ray.executor import OnRay
    from ndld_flow.recipe.points import Sweep
    from ndld_flow.records.run_record import RunRecord, StepRecord
    from ndld_flow.sweep.plan_sweep import SweepPlan


def run_request(request: Request, listener: Listener) -> RunFinished | SweepFinished:
    """Run a recipe, or its sweep. Raises NdldFlowError, see base/errors.py."""
    finished: RunFinished | SweepFinished
    with working_on(request, "run") as loaded:
        if isinstance(loaded, Recipe):
            finished = _run_and_export(loaded, request, listener)
        else:
            if request.output is not None:
                raise RequestError(
                    f"--output {request.output}: a sweep has many results. Write its best point with `--best "
                    "best.yaml`, and run that with --output."
                )
            from ndld_flow.sweep.run_sweep import run_sweep

            finished = run_sweep(loaded, request, listener)
    listener(finished)
    return finished


def _run_and_export(recipe: Recipe, request: Request, listener: Listener) -> RunFinished:
    """Run a recipe; if it passes, write the results that the recipe or the request names."""
    from ndld_flow.runner.run import run_recipe

    if not recipe.file.export and request.output is None:
        return run_recipe(open_single(recipe, request, listener), request)
    from ndld_flow.execution.events import Notice
    from ndld_flow.runner.export import export_results, plan_exports

    exports = plan_exports(recipe, request.output)
    finished = run_recipe(open_single(recipe, request, listener), request)
    if finished.passed:
        folder = Path(finished.folder)
        run = read_run_record(folder)
        written = export_results(exports, run, folder)
        shipped = tuple(
            (f"weights in {first_of([Path(file).name for file in data], 3)}, " if data else "")
            + run.results.get(export.step, "not proven faster")
            for export, (_, *data) in zip(exports, written, strict=True)
        )
        return finished.model_copy(update={"exported": tuple(files[0] for files in written), "shipped": shipped})
    listener(Notice(text="the run did not pass, so its result was not exported", warning=True))
    return finished


def run_alone(request: Request, listener: Listener) -> RunFinished:
    """Run a recipe that has no sweep, such as one that a verb has written; nothing is exported."""
    from ndld_flow.runner.run import run_recipe

    with working_on(request, "run") as recipe:
        assert isinstance(recipe, Recipe)
        finished = run_recipe(open_single(recipe, request, listener), request)
    listener(finished)
    return finished


def plan_request(request: Request, listener: Listener) -> list[Decision] | SweepPlan:
    """Decide for each step whether it would run, and why; or plan a sweep.

    Nothing is computed, but models may be downloaded. Raises NdldFlowError as `run_request` does.
    """
    with working_on(request, "plan") as loaded:
        if isinstance(loaded, Recipe):
            run = open_single(loaded, request, listener, looks_only=True)
            with run.held:
                look_ahead([(run.planner, run.digests)])
                decisions = plan_steps(run.planner, run.digests, run.paths)
                if not all(decision.reused for decision in decisions):
                    refuse_wrong_inputs(loaded, run.paths)
                return decisions
        from ndld_flow.sweep.plan_sweep import plan_sweep

        return plan_sweep(loaded, request, listener)


def digest_request(request: Request, listener: Listener) -> str:
    """Return the digest of everything but the machine that decides the results of a recipe or its sweep.

    It covers the settings of all steps, the models, data files, code and libraries, and no paths and no credentials, so
    that machines of CI agree on it. Raises NdldFlowError as `plan_request` does.
    """
    with working_on(request, "plan") as loaded:
        recipe = loaded if isinstance(loaded, Recipe) else loaded.base
        return digest_recipe(recipe, open_single(recipe, request, listener))


def digest_recipe(recipe: Recipe, run: RunState) -> str:
    """Return the digest of an opened recipe, as `digest_request` does."""

    def parts(step: RecipeStep) -> JsonValue:
        known = describe_key(step, {}, recipe.file.inputs, run.outputs.store, lambda _: "")
        reads = {name: digest for name, digest in known.reads.items() if name != HIDDEN_VALUES}
        read_steps: dict[str, JsonValue] = {**step.reads}  # what these will write is not known yet
        return [step.name, read_steps, known.model_copy(update={"reads": reads}).model_dump(mode="json")]

    section = recipe.file.sweep
    return digest_json(
        {
            "models": {name: model.record.digest for name, model in run.models.items()},
            "steps": [parts(step) for step in recipe.steps],
            "gates": list(recipe.file.gates),
            "sweep": section.model_dump(mode="json") if section is not None else None,
        }
    )


@contextlib.contextmanager
def working_on(request: Request, work: Literal["plan", "run"]) -> Iterator[Recipe | Sweep]:
    """Yield the checked recipe of a request, or its sweep; `work` is `run` or `plan`.

    A run protects the results that it uses from `gc` meanwhile. A plan takes no locks: at worst, `gc` has just removed
    a result that it calls stored. Raises RecipeError with every problem, and OutputsError for a full disk.
    """
    outputs = Outputs(request.outputs)
    outputs.prepare()
    with explaining_disk(f"{work} of {request.recipe}", outputs.root):
        loaded = _load(request, outputs)
        if work == "plan":
            yield loaded
            return
        with outputs.store.locks.working():
            outputs.store.sweep_building()
            yield loaded


def _load(request: Request, outputs: Outputs) -> Recipe | Sweep:
    loaded = load_sweep(request.source, request.overrides, multirun=request.multirun, trust=request.trust)
    if not isinstance(loaded, Recipe):
        return loaded
    if request.multirun:
        raise RequestError(
            f"{request.recipe}: there is nothing to sweep over: it has no `sweep:`, and no override has several "
            "values, such as `steps.speed.threads=1,2,4`."
        )
    if request.apply is not None:
        raise RequestError(
            f"--best {request.apply}: {request.recipe} runs once, so there is no best point: sweep with `-m`."
        )
    if request.place.jobs is not None:
        raise RequestError(
            f"--jobs distributes the points of a sweep, and {request.recipe} runs once: remove it, or sweep with `-m`."
        )
    return loaded


def open_single(recipe: Recipe, request: Request, listener: Listener, *, looks_only: bool = False) -> RunState:
    """Open the run of a recipe without a sweep. `looks_only`: nothing is fetched from the shared cache, or pushed."""
    outputs = Outputs(request.outputs)
    targets = open_targets(recipe.sent_to(request.on), listener, typed=request.on, trust=request.trust)
    cache = open_cache(request, outputs.store, listener, looks_only=looks_only)
    latest = outputs.latest(recipe.name)
    previous: dict[str, StepRecord] = {}
    if latest is not None:
        with contextlib.suppress(RequestError):  # of another version: it gives no reasons, but must not stop this run
            earlier = read_run_record(latest)
            previous = earlier.records
            _warn_of_namesake(earlier, request, outputs, listener)
    forced = choose_forced(request.force, recipe)
    opener = RunOpener(outputs, listener, forced, cache=cache, targets=targets, on=request.on, looks_only=looks_only)
    run = opener.open_run(recipe, previous)
    run.targets = targets
    if targets is not None:
        run.held.callback(targets.close)
    run.command = request.command_in(outputs.runs / recipe.name / run.id)
    if cache is not None:
        run.held.callback(cache.close)
    if request.place.ray:
        _compute_on_cluster(run, request)
    return run


def _warn_of_namesake(earlier: RunRecord, request: Request, outputs: Outputs, listener: Listener) -> None:
    """Warn of another recipe's file with the name of this one: their runs would be one history."""
    other, _ = recipe_of(earlier)
    if other is None or request.given is not None:
        return
    files = other.resolve(), request.recipe.resolve()
    if files[0] == files[1] or any(file.is_relative_to(outputs.root.resolve()) for file in files):  # runs have copies
        return
    from ndld_flow.execution.events import Notice

    text = (
        f"{other} has the name {earlier.recipe_name!r} too, so that its runs and those of {request.recipe} are one "
        "history: give one of them another `name:`"
    )
    listener(Notice(text=text, warning=True))


def _compute_on_cluster(run: RunState, request: Request) -> None:
    """Make the cluster of a request compute all steps of a run; it is connected when it is first needed."""
    from ndld_flow.execution.choose_executor import open_cluster, refuse_with_ray

    @functools.cache
    def cluster() -> OnRay:
        return run.held.enter_context(contextlib.closing(open_cluster(run.recipe, request, run.listener)))

    refuse_with_ray(request, run.targets)
    run.cluster = cluster
    run.planner = replace(run.planner, machine_of=lambda step: cluster().machine_for(step, run.outputs.store))
