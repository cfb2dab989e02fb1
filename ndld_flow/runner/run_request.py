"""Run or plan what a request names: a recipe, or its sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.events import Listener, RunFinished, SweepFinished
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Decision
from ndld_flow.runner.run import plan_loaded, run_loaded
from ndld_flow.runner.state import Placement, Request

if TYPE_CHECKING:
    from ndld_flow.runner.sweep.plan_sweep import SweepPlan


def load_request(request: Request) -> Recipe | Sweep:
    """Load the recipe of a request, or its sweep. Raises RecipeError with every problem found."""
    store = Outputs(request.outputs).store
    loaded = load_sweep(request.recipe, request.overrides, multirun=request.multirun, trust=request.trust, store=store)
    if request.multirun and isinstance(loaded, Recipe):
        raise RequestError(
            f"{request.recipe}: there is nothing to sweep over: it has no `sweep:`, and no override has several "
            "values, such as `steps.speed.threads=1,2,4`."
        )
    if request.apply is not None and isinstance(loaded, Recipe):
        raise RequestError(
            f"--apply {request.apply}: {request.recipe} runs once, so there is no best point: sweep with `-m`."
        )
    if request.place != Placement() and isinstance(loaded, Recipe):
        raise RequestError(
            f"--jobs and --ray distribute the points of a sweep, and {request.recipe} runs once: leave them out, "
            "or sweep with `-m`."
        )
    return loaded


def run_request(request: Request, listener: Listener) -> RunFinished | SweepFinished:
    """Run a recipe, or its sweep. Raises NdldFlowError, see base/errors.py."""
    Outputs(request.outputs).prepare()
    with explaining_disk(f"run of {request.recipe}", request.outputs):
        loaded = load_request(request)
    if isinstance(loaded, Recipe):
        return run_loaded(loaded, request, listener)
    from ndld_flow.runner.sweep.run_sweep import run_sweep

    return run_sweep(loaded, request, listener)


def plan_request(request: Request, listener: Listener) -> list[Decision] | SweepPlan:
    """Plan `run_request`. Nothing is computed, but models may be downloaded."""
    Outputs(request.outputs).prepare()
    with explaining_disk(f"plan of {request.recipe}", request.outputs):
        loaded = load_request(request)
        if isinstance(loaded, Recipe):
            return plan_loaded(loaded, request, listener)
        from ndld_flow.runner.sweep.plan_sweep import plan_sweep

        with Outputs(request.outputs).store.locks.working():
            return plan_sweep(loaded, request, listener)
