"""What is known of a run before it begins: what its steps will do here, and why some of them cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ndld_flow.errors import BackendError
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.runner.plan import Planner, plan_steps


def refuse_hopeless_run(recipe: Recipe, planner: Planner, digests: Mapping[str, str | None]) -> None:
    """Raise BackendError with all that steps of the run cannot do here. What is reused needs nothing."""
    troubled = {step.name for step in recipe.steps if step.step.foresee().obstacles}
    if not troubled:
        return
    needed = {decision.step.name for decision in plan_steps(planner, digests) if not decision.reused}
    told = list(_tell(step for step in recipe.steps if step.name in troubled & needed))
    if told:
        raise BackendError("\n".join(told))


def _tell(steps: Iterable[RecipeStep]) -> Iterable[str]:
    for step in steps:
        for problem in step.step.foresee().of_step(step.name).obstacles:
            yield f"step {step.name}: {problem}"
