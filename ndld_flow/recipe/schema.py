"""JSON Schema of recipes, for editors, and descriptions of steps, as `ndld-flow steps --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, JsonValue

from ndld_flow.base.settings import fields_of
from ndld_flow.recipe.recipe import RecipeFile
from ndld_flow.recipe.step_types import StepType
from ndld_flow.recipe.targets import ON
from ndld_flow.records.document import Record
from ndld_flow.step import Reads, Step

OWN_INPUTS = "Inputs of the model that this step runs, instead of the recipe's, whose form they have."
_SHORT_INPUT = ({"type": "string"}, {"type": "number"}, {"type": "array", "items": {"type": "string"}})
INPUTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [*_SHORT_INPUT, {"$ref": "#/$defs/InputSpec"}]},
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def describe_recipes(types: Iterable[StepType]) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of recipes with every step type and all settings."""
    schema: dict[str, Any] = RecipeFile.model_json_schema()
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    known = list(types)
    for step_type in known:
        definitions[f"step_{step_type.name}"] = _describe_step(step_type, definitions)
    by_word = {each.name: {"$ref": f"#/$defs/step_{each.name}"} for each in known}
    properties = schema["properties"]
    properties["steps"] |= {
        # a step that has the name of its type needs no `step:`
        "properties": {name: {"anyOf": [{"type": "null"}, _choose(by_word, name)]} for name in by_word},
        "additionalProperties": {"allOf": [{"required": ["step"]}, _choose(by_word, None)]},
        "propertyNames": {"pattern": "^(?!source$)[A-Za-z_][A-Za-z0-9_]*$"},
    }
    properties["model"] = {"anyOf": [{"type": "string"}, properties["model"]]}
    properties["inputs"]["additionalProperties"] = INPUTS_SCHEMA["additionalProperties"]
    targets = properties["targets"]
    targets["additionalProperties"] = {"anyOf": [{"type": "string"}, targets["additionalProperties"]]}
    models = properties["models"]
    models["additionalProperties"] = {"anyOf": [{"type": "string"}, models["additionalProperties"]]}
    properties["defaults"] = {
        "type": "array",
        "description": "Recipes and config groups on which this recipe builds (Hydra): `profiling@steps.speed: quick`.",
    }
    schema |= {"$schema": DIALECT, "title": "ndld_flow recipe"}
    return schema


def has_own_inputs(cls: type[Step[Any, Any]]) -> bool:
    """Return whether a step's entry in a recipe may have `inputs:`."""
    return cls.may_read_inputs() and "inputs" not in fields_of(cls)


def _choose(by_word: dict[str, dict[str, str]], default: str | None) -> dict[str, Any]:
    """Apply the schema of the type that `step:` names, or of the default type if there is no `step:`."""
    rules: list[dict[str, Any]] = [
        {"if": {"properties": {"step": {"const": word}}, "required": ["step"]}, "then": reference}
        for word, reference in by_word.items()
    ]
    if default is not None:
        rules.append({"if": {"not": {"required": ["step"]}}, "then": by_word[default]})
    return {"type": "object", "properties": {"step": {"enum": list(by_word)}}, "allOf": rules}


def _describe_step(step_type: StepType, definitions: dict[str, Any]) -> dict[str, Any]:
    cls = step_type.cls
    schema: dict[str, Any] = cls.model_json_schema()
    definitions |= schema.pop("$defs", {})
    reads, makes = cls.kinds()
    properties = {
        "step": {"const": step_type.name},
        cls.read_key: {"type": "string", "description": f"The step (or `source`) to read: {reads.kind}."},
        **schema.get("properties", {}),
        ON: {"type": "string", "description": "The target on which the step runs; `here` for this machine."},
    }
    if has_own_inputs(cls):
        properties["inputs"] = {**INPUTS_SCHEMA, "description": OWN_INPUTS}
    for setting in cls.marked(Reads):
        if "anyOf" not in properties[setting]:  # an optional setting is `string or null` already
            properties[setting]["type"] = "string"
    schema |= {"properties": properties, "title": step_type.name, "additionalProperties": False}
    schema["description"] = f"{step_type.summary} Reads {reads.kind}, produces {makes.kind}."
    if cls.returns is not None:
        schema["x-metrics"] = [each.name for each in cls.returns]
    return schema


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
