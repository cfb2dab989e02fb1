"""Descriptions of steps and of parts of their settings, as `ndld-flow steps --json` prints them."""

from __future__ import annotations

from pydantic import Field, JsonValue

from ndld_flow.recipe.step_types import StepType
from ndld_flow.records.document import Record


class DescribedMetric(Record):
    """A metric that a step declares."""

    name: str
    unit: str
    when: str
    """The condition under which it is returned; empty if it always is."""


class DescribedStep(Record):
    """A step, from `ndld-flow steps`."""

    name: str
    summary: str
    reads: str
    """The kind of artifact that it reads."""
    makes: str
    version: str
    origin: str
    """`built in`, the distribution it comes from, or its file."""
    metrics: tuple[DescribedMetric, ...] | None
    """None for a step that declares none: they are known only after a run."""
    settings: dict[str, JsonValue] = Field(serialization_alias="schema")
    """JSON Schema of its settings."""


class DescribedPart(Record):
    """A part of a step's settings, such as an operation, from `ndld-flow steps STEP.PART`."""

    name: str
    settings: dict[str, JsonValue] = Field(serialization_alias="schema")
    """JSON Schema of its settings."""


def describe_step(step: StepType) -> DescribedStep:
    """Return the kinds that a step reads and makes, its metrics, and the JSON Schema of its settings."""
    reads, makes = step.cls.kinds()
    returns = step.cls.returns
    return DescribedStep(
        name=step.name,
        summary=step.summary,
        reads=reads.kind,
        makes=makes.kind,
        version=step.version,
        origin=step.origin,
        metrics=None
        if returns is None
        else tuple(DescribedMetric(name=each.name, unit=each.unit, when=each.when) for each in returns),
        settings=step.cls.model_json_schema(),
    )
