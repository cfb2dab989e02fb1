"""Load the recipe of a request, and open its run or its plan.

Every plan imports this, and nothing that computes or writes runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.execution.request import Request, recipe_of
from ndld_flow.execution.ssh.targets import open_targets
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runner.run_state import RunOpener, RunState, choose_forced
from ndld_flow.runs.cache_settings import choose_cache
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.cache import Cache
    from ndld_flow.execution.listener import Listener
    from ndld_flow.execution.ray.executor import OnRay
    from ndld_flow.recipe.points import Sweep
    from ndld_flow.records.run_record import RunRecord, StepRecord


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


def open_cache(request: Request, store: Store, listener: Listener, *, looks_only: bool = False) -> Cache | None:
    """Return the shared cache that a request uses; None without one. Raises as `choose_cache` does.

    `looks_only`: nothing is fetched or pushed.
    """
    settings = choose_cache(request.cache)
    if settings is None:
        return None
    from ndld_flow.execution.cache import Cache

    return Cache(settings, store, listener, looks_only=looks_only)
