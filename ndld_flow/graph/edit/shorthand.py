"""Settings that may be written in a shorter way, which an editor's schema knows too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

Form = Literal["text", "texts", "number", "value"]
"""How the shorter form looks in YAML; `value` is anything."""

_SCHEMAS: dict[Form, JsonSchemaValue] = {
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "number": {"type": "number"},
    "value": {},
}


@dataclass(frozen=True)
class AlsoWritten:
    """Marks a setting that has a shorter form."""

    full: Callable[[Any], Any]
    """The shorter form -> the full one; what is in full form already is returned as it is.

    Pydantic takes what comes out for Python and no longer for JSON: a tuple must be one, or be `Field(strict=False)`.
    """
    short: tuple[Form, ...]
    """The shorter forms, for editors."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.full, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*(_SCHEMAS[form] for form in self.short), handler(schema)]}
