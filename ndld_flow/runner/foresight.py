"""What is known of a run before it begins: what its steps will do here, and why some of them cannot."""

from __future__ import annotations

from collections.abc import Mapping

from ndld_flow.base.errors import BackendError
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.runner.plan import Planner, plan_steps


def refuse_hopeless_run(recipe: Recipe, planner: Planner, digests: Mapping[str, str | None]) -> None:
    """Raise BackendError with all that steps of the run cannot do here. What is reused needs nothing."""
    obstacles = {step.name: step.step.foresee().of_step(step.name).obstacles for step in recipe.steps}
    if not any(obstacles.values()):
        return
    needed = [decision.step.name for decision in plan_steps(planner, digests) if not decision.reused]
    told = [f"step {name}: {obstacle}" for name in needed for obstacle in obstacles[name]]
    if told:
        raise BackendError("\n".join(told))
