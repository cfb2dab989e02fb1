"""Run or plan what a request names: a recipe, or its sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.recipe.recipe import Recipe
from ndld_flow.runner.events import Listener, RunFinished, SweepFinished
from ndld_flow.runner.plan import Decision, plan_steps
from ndld_flow.runner.request import Request
from ndld_flow.runner.run import open_single, run_recipe, working_on

if TYPE_CHECKING:
    from ndld_flow.runner.sweep.plan_sweep import SweepPlan


def run_request(request: Request, listener: Listener) -> RunFinished | SweepFinished:
    """Run a recipe, or its sweep. Raises NdldFlowError, see base/errors.py."""
    finished: RunFinished | SweepFinished
    with working_on(request, "run") as loaded:
        if isinstance(loaded, Recipe):
            finished = run_recipe(loaded, request, listener)
        else:
            from ndld_flow.runner.sweep.run_sweep import run_sweep

            finished = run_sweep(loaded, request, listener)
    listener(finished)
    return finished


def plan_request(request: Request, listener: Listener) -> list[Decision] | SweepPlan:
    """Decide for each step whether it would run, and why; or plan a sweep.

    Nothing is computed, but models may be downloaded. Raises NdldFlowError as `run_request` does.
    """
    with working_on(request, "plan") as loaded:
        if isinstance(loaded, Recipe):
            run = open_single(loaded, request, listener)
            return plan_steps(run.planner, run.digests)
        from ndld_flow.runner.sweep.plan_sweep import plan_sweep

        return plan_sweep(loaded, request, listener)
