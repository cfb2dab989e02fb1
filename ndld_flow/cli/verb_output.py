"""The JSON that verbs print with `--json`: one typed model for each verb, and its JSON Schema.

Documents (comparisons, differences of models, noise) are printed as they are written to files, and have a version of
their own. The version of any other output rises when a field is removed or renamed or changes its meaning; a new field
does not raise it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, to_json

from ndld_flow.base.errors import UnknownNameError
from ndld_flow.base.lazy_names import names_for_checkers
from ndld_flow.base.settings import read_docstrings
from ndld_flow.cli.public_functions import Value, VerbOutput
from ndld_flow.cli.verbs import list_outputs


def format_value(output: VerbOutput[Value], value: Value) -> str:
    """Return the JSON of a verb's result."""
    # Infinities inside a union of models would be null by `TypeAdapter`, whatever the models say.
    printed = to_json(value, indent=1, by_alias=True, exclude_none=output.leaves_out_null, inf_nan_mode="strings")
    return printed.decode()


def describe_output(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of what a verb prints with `--json`, the error of a verb that fails included.

    Raises RequestError for a verb without `--json`.
    """
    from ndld_flow.execution.events import Failure
    from ndld_flow.recipe.schema import DIALECT

    outputs = list_outputs()
    if verb not in outputs:
        raise UnknownNameError(f"no verb {verb!r} prints JSON", verb, outputs)
    output = outputs[verb]
    # The verb's file imports most types for checkers only.
    module = sys.modules[output.module]
    annotation = module.__annotations__["OUTPUT"]
    homes = {name: home for name, home in names_for_checkers(module.__name__).items() if name in annotation}
    imported = {name: getattr(importlib.import_module(home), name) for name, home in homes.items()}
    [value] = get_args(eval(annotation, {**vars(module), **imported}))  # noqa: S307 - the text is this package's
    schema = TypeAdapter(value | Failure).json_schema(mode="serialization", schema_generator=_Described)
    if output.leaves_out_null:
        # Fields that can be null are left out where they are.
        for part in (schema, *schema.get("$defs", {}).values()):
            fields = part.get("properties", {})
            can_be_null = {name for name, field in fields.items() if {"type": "null"} in field.get("anyOf", [])}
            if "required" in part:
                part["required"] = [name for name in part["required"] if name not in can_be_null]
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
