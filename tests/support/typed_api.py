"""`api.run` and `api.plan` for recipes without a sweep, whose result is then known."""

from __future__ import annotations

from typing import Any

from ndld_flow import api
from ndld_flow.execution.events import RunFinished
from ndld_flow.execution.request import AnyRecipe
from ndld_flow.runner.plan import Decision


def run_once(recipe: AnyRecipe, *arguments: Any, **options: Any) -> RunFinished:
    finished = api.run(recipe, *arguments, **options)
    assert isinstance(finished, RunFinished)
    return finished


def plan_once(recipe: AnyRecipe, *arguments: Any, **options: Any) -> list[Decision]:
    decisions = api.plan(recipe, *arguments, **options)
    assert isinstance(decisions, list)
    return decisions
