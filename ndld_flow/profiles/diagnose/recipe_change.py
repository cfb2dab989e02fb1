"""The change of a recipe that a finding suggests, and the steps of a run that it would affect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from ndld_flow.records.run_record import RunRecord


@dataclass(frozen=True)
class AddedStep:
    """A step to insert before the one that profiled, between it and the model that it reads."""

    step: str
    """Type of the step."""
    settings: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeChange:
    """Settings of the step that profiled, and steps to insert before it."""

    settings: dict[str, JsonValue] = field(default_factory=dict)
    steps: tuple[AddedStep, ...] = ()
    """In the order in which they run."""
    needs_check: bool = False
    """True if outputs may change noticeably: `check_accuracy` is inserted after the steps."""

    @property
    def text(self) -> str:
        """The change in words, with code in backticks: ```set `threads: 2` ```."""
        parts = [f"insert `{_yaml({each.step: each.settings})}`" for each in self.steps]
        if self.needs_check:
            parts.append("insert `check_accuracy`")
        parts += [f"set `{_yaml({name: value})}`" for name, value in self.settings.items()]
        return ", ".join(parts)


FUSE = RecipeChange(steps=(AddedStep("sanitize", {"fuse": True}),))
"""Simplify the model and fold what can be folded."""


def _yaml(value: Mapping[str, JsonValue]) -> str:
    """Return a mapping with one key as in a recipe: `sanitize: {fuse: true}`."""
    ((name, inner),) = value.items()
    if isinstance(inner, dict):
        return f"{name}: {{{', '.join(_yaml({key: each}) for key, each in inner.items())}}}"
    return f"{name}: {inner if isinstance(inner, str) else json.dumps(inner)}"


def model_chain(run: RunRecord, step: str) -> tuple[str, ...]:
    """Return the names of the steps from the first that changed the model of a step to that step, which is the last."""
    records = {each.name: each.record for each in run.steps}
    chain: list[str] = []
    while (record := records.get(step)) is not None and step not in chain:
        chain.append(step)
        step = record.parents.get("from", "")
    return tuple(reversed(chain))


def is_applied(change: RecipeChange, run: RunRecord, step: str) -> bool:
    """Return whether a run has a change already: following the advice would repeat its work."""
    recipe = run.recipe.get("steps")
    steps = recipe if isinstance(recipe, dict) else {}
    *before, last = (steps.get(name) for name in model_chain(run, step) or ("",))
    types = {each.name: each.step for each in run.steps}
    ran = list(zip(map(types.get, model_chain(run, step)), before, strict=False))
    return _has(last, change.settings) and all(
        any(kind == added.step and _has(settings, added.settings) for kind, settings in ran) for added in change.steps
    )


def _has(settings: JsonValue, wanted: Mapping[str, JsonValue]) -> bool:
    """Return whether settings contain all wanted values."""
    return isinstance(settings, dict) and all(name in settings and settings[name] == wanted[name] for name in wanted)
