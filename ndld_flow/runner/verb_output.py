"""The JSON that verbs print with `--json`: one typed model for each verb, and its JSON Schema.

Documents (comparisons, differences of models, noise) are printed as they are written to files, and have a version of
their own. The version of any other output rises when a field is removed or renamed or changes its meaning; a new field
does not raise it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from ndld_flow.base.errors import RequestError
from ndld_flow.base.settings import read_docstrings
from ndld_flow.base.text import suggest

_FAILURE = "ndld_flow.runner.events:Failure"


@dataclass(frozen=True)
class VerbOutput:
    """The JSON that a verb prints, by the names of its types: the modules of some take long to import."""

    summary: str
    one: tuple[str, ...] = ()
    """Types of a single value, as `module:Class`."""
    many: tuple[str, ...] = ()
    """Types of the entries of a list."""
    version: int | None = 1
    """None for a document, which has a version of its own."""
    is_lines: bool = False
    """True if each line is a value; otherwise there is one value."""
    leaves_out_null: bool = False
    """True if fields without a value are left out."""

    def type(self, *more: str) -> Any:  # noqa: ANN401 - a type
        """Return the type of all values, and of `more`."""
        lists = [list[pkgutil.resolve_name(name)] for name in self.many]  # type: ignore[misc]
        return Union[(*lists, *map(pkgutil.resolve_name, (*self.one, *more)))]


OUTPUTS: Mapping[str, VerbOutput] = {
    "run": VerbOutput(
        "The events of the run, each when it happens; the last one has the result.",
        one=("ndld_flow.runner.events:Event",),
        is_lines=True,
    ),
    "plan": VerbOutput(
        "The decision on each step, or the work of a sweep.",
        one=("ndld_flow.sweep.plan_sweep:SweepPlan",),
        many=("ndld_flow.runner.described_results:StepDecision",),
    ),
    "profile": VerbOutput(
        "The profile, and its summary.", one=("ndld_flow.runner.described_results:ProfileOutput",), version=2
    ),
    "compare": VerbOutput(
        "The document `comparison`, or `engine comparison` for two engines without times.",
        one=("ndld_flow.records.comparison:Comparison", "ndld_flow.records.engine_lock:EngineComparison"),
        version=None,
    ),
    "apply": VerbOutput(
        "The applied change and its effect; without a finding, those that can be applied.",
        one=("ndld_flow.runner.apply_finding:AppliedChange",),
        many=("ndld_flow.runner.apply_finding:OfferedChange",),
    ),
    "diff": VerbOutput(
        "The document `model diff`, or `engine comparison` for two engines.",
        one=("ndld_flow.records.model_diff:ModelDiff", "ndld_flow.records.engine_lock:EngineComparison"),
        version=None,
    ),
    "reduce": VerbOutput("The reduced model.", one=("ndld_flow.reduce.pack:Reduced",)),
    "optimize": VerbOutput(
        "The document `optimization`.", one=("ndld_flow.records.optimization:Optimization",), version=None
    ),
    "noise": VerbOutput("The document `noise`.", one=("ndld_flow.records.noise:Noise",), version=None),
    "inspect": VerbOutput(
        "The summary of the model, or the result of the query; other fields are left out.",
        one=("ndld_flow.records.inspection:Inspection",),
        leaves_out_null=True,
    ),
    "runs": VerbOutput("The runs and sweeps, the newest first.", many=("ndld_flow.runner.list_runs:RunSummary",)),
    "history": VerbOutput(
        "The series of the metrics; with `accept`, the accepted change.",
        one=("ndld_flow.records.history:MetricHistory", "ndld_flow.records.history:AcceptedChange"),
    ),
    "mlflow": VerbOutput(
        "What became of each run in MLflow tracking.", many=("ndld_flow.runner.mlflow_export:Logged",)
    ),
    "steps": VerbOutput(
        "All steps; with a name, that step, or that part of a step.",
        one=("ndld_flow.recipe.described_steps:DescribedStep", "ndld_flow.recipe.described_steps:DescribedPart"),
        many=("ndld_flow.recipe.described_steps:DescribedStep",),
    ),
    "ops": VerbOutput("The operators that match.", many=("ndld_flow.models.op_reference:DescribedOperator",)),
    "verify": VerbOutput("The number of checked files, and the damage.", one=("ndld_flow.runner.verify:Verified",)),
    "gc": VerbOutput(
        "Everything that was deleted, or would be.",
        one=(
            "ndld_flow.runner.collect_garbage:Freed",
            "ndld_flow.runner.collect_garbage:LibrariesFreed",
            "ndld_flow.runner.collect_cache:CacheFreed",
        ),
    ),
    "doctor": VerbOutput("The result of each check.", many=("ndld_flow.machine.check:Check",)),
}
"""Verb with `--json` -> what it prints."""


def format_value(verb: str, value: object) -> str:
    """Return the JSON of a verb's result."""
    output = OUTPUTS[verb]
    adapter: TypeAdapter[Any] = TypeAdapter(output.type())
    return adapter.dump_json(value, indent=1, by_alias=True, exclude_none=output.leaves_out_null).decode()


def describe_output(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of what a verb prints with `--json`, the error of a verb that fails included.

    Raises RequestError for a verb without `--json`.
    """
    from ndld_flow.recipe.schema import DIALECT

    if verb not in OUTPUTS:
        raise RequestError(f"no verb {verb!r} prints JSON; {suggest(verb, OUTPUTS)}")
    output = OUTPUTS[verb]
    schema = TypeAdapter(output.type(_FAILURE)).json_schema(mode="serialization", schema_generator=_Described)
    if output.leaves_out_null:
        _make_optional(schema)
    version = {} if output.version is None else {"x-version": output.version}
    subject = "One line" if output.is_lines else "The document"
    title = f"ndld-flow {verb} --json"
    description = f"{subject} that `{title}` prints. {output.summary}"
    return {"$schema": DIALECT, "title": title, "description": description, **version, **schema}


class _Described(GenerateJsonSchema):
    """The generator of schemas, with the docstrings of fields, and NaN and infinities as they are printed."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ANN401 - as pydantic's
        return _with_descriptions(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ANN401
        return _with_descriptions(super().dataclass_schema(schema), schema["cls"])

    def float_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ANN401
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ANN401
        inner = super().nullable_schema(schema)
        choices = [choice for part in inner.get("anyOf", []) for choice in part.get("anyOf", [part])]
        return {"anyOf": choices} if choices else inner

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401
        return True  # a field with its default value is printed too

    def get_title_from_name(self, name: str) -> str:
        return name

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False


def _with_descriptions(schema: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("ndld_flow."):
            notes |= read_docstrings(base)
    for name, field in schema.get("properties", {}).items():
        if name in notes:
            field.setdefault("description", " ".join(notes[name].split()))
    return schema


def _make_optional(schema: JsonSchemaValue) -> None:
    """Require only the fields that cannot be null: the others are left out where they are."""
    for part in (schema, *schema.get("$defs", {}).values()):
        fields = part.get("properties", {})
        can_be_null = {name for name, field in fields.items() if {"type": "null"} in field.get("anyOf", [])}
        if "required" in part:
            part["required"] = [name for name in part["required"] if name not in can_be_null]
