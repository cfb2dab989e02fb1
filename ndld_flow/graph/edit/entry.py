"""An entry of a list of operations: a mapping with one key, the operation's word, and its settings.

Each operation has an entry type of its own, made when it is first used, so that a mistake is told at its place
(`operations.3.rename_nodes.to`) and an editor's schema knows every setting, while a recipe imports only what it uses.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.catalogue import find_operation, operation_words
from ndld_flow.graph.edit.operation import Operation


class OperationEntry(BaseModel):
    """One operation of the list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    def word(self) -> str:
        """The operation's name."""
        return next(iter(type(self).model_fields))

    @property
    def operation(self) -> Operation:
        """The operation with its settings."""
        found: Operation = getattr(self, self.word)
        return found

    @classmethod
    def model_at_key(cls, key: str) -> type[BaseModel] | None:
        """The entry that has this key; how messages find the settings that a mistake was made in."""
        return entry_type(key) if key in operation_words() else None


@cache
def entry_type(word: str) -> type[OperationEntry]:
    """The entry of one operation. The word must be one of `operation_words()`."""
    operation = find_operation(word)
    assert operation is not None
    made: type[OperationEntry] = create_model(f"{word}_entry", __base__=OperationEntry, **{word: (operation, ...)})  # type: ignore[call-overload]
    return made


def _read_entry(value: object) -> OperationEntry:
    if isinstance(value, OperationEntry):
        return value
    entry = {value: {}} if isinstance(value, str) else value
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("an operation is a mapping with one key, its name: `- remove_nodes: {...}`")
    word = str(next(iter(entry)))
    if word not in operation_words():
        raise ValueError(f"there is no operation `{word}`; {suggest(word, operation_words())}")
    settings = {word: {} if entry[word] is None else entry[word]}
    # JSON, because strict validation of JSON takes a list for a tuple and still refuses "10" for 10
    return entry_type(word).model_validate_json(json.dumps(settings, default=str))


def _write_entry(entry: OperationEntry, info: SerializationInfo) -> dict[str, Any]:
    return entry.model_dump(mode=info.mode, exclude_defaults=info.exclude_defaults)


class _ByWord:
    """Tells pydantic to read an entry by the one key it has."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _read_entry, serialization=core_schema.plain_serializer_function_ser_schema(_write_entry, info_arg=True)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        operations = {word: found for word in operation_words() if (found := find_operation(word))}
        for operation in operations.values():
            operation.model_rebuild()  # where nothing was read by it yet
        settings = {
            word: found.__get_pydantic_json_schema__(found.__pydantic_core_schema__, handler)
            for word, found in operations.items()
        }
        needless = [
            word for word, found in operations.items() if not any(map(_is_required, found.model_fields.values()))
        ]
        settings |= {word: {"anyOf": [settings[word], {"type": "null"}]} for word in needless}
        # one mapping with all words, not a choice of mappings with one each: editors then tell what is wrong in it
        entry = {"type": "object", "properties": settings, "additionalProperties": False}
        entry |= {"minProperties": 1, "maxProperties": 1}
        return {"title": "operation", "oneOf": [{"enum": needless}, entry]}


def _is_required(field: FieldInfo) -> bool:
    return field.is_required()


AnyOperation = Annotated[OperationEntry, _ByWord()]
"""A setting that is one operation."""
