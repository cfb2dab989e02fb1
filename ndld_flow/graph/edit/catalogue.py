"""Discovery of operations, built in and from installed packages, and entries of lists of operations.

An entry is a mapping with one key, the operation's name, and its settings. Each operation has its own entry type,
created on first use, so that errors point to their place (`operations.3.rename_nodes.to`) and an editor's schema knows
every setting, while a recipe imports only the operations that it uses.
"""

import inspect
import json
import pkgutil
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo, create_model
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit import operations
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.machine.plugins import classes_in, find_plugins, load_plugin, plugin_origin

ENTRY_POINTS = "ndld_flow.operations"
"""Group in which an installed package lists its operations: `name = "package.module:Class"`."""


@cache
def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, sorted. Imports no operation."""
    return tuple(sorted({*_built_in(), *find_plugins(ENTRY_POINTS)}))


@cache
def _built_in() -> dict[str, str]:
    return classes_in(operations, "Operation")


@cache
def find_operation(name: str) -> type[Operation] | None:
    """Return the operation of that name, or None."""
    if name in _built_in():
        found: type[Operation] = pkgutil.resolve_name(_built_in()[name])
        return found
    point = find_plugins(ENTRY_POINTS).get(name)
    if point is None:
        return None
    operation = load_plugin(point)
    if not (inspect.isclass(operation) and issubclass(operation, Operation)):
        raise RequestError(f"{plugin_origin(point)}: {point.value} is no subclass of Operation.")
    return operation


def origin_of(name: str) -> str:
    """Return the distribution that provides an operation, with its version; empty for a built-in one."""
    point = find_plugins(ENTRY_POINTS).get(name)
    return plugin_origin(point) if point is not None else ""


class OperationEntry(BaseModel):
    """An operation in a list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    def name(self) -> str:
        """Return the operation's name."""
        return next(iter(type(self).model_fields))

    @property
    def operation(self) -> Operation:
        """Return the operation with its settings."""
        operation: Operation = getattr(self, self.name)
        return operation

    @classmethod
    def model_at_key(cls, key: str) -> type[BaseModel] | None:
        """Return the entry type with this key, in which error messages look up the settings at fault."""
        return entry_type(key) if key in operation_names() else None


@cache
def entry_type(name: str) -> type[OperationEntry]:
    """Return the entry type of an operation, whose name must be one of `operation_names()`."""
    operation = find_operation(name)
    assert operation is not None
    entry: type[OperationEntry] = create_model(f"{name}_entry", __base__=OperationEntry, **{name: (operation, ...)})  # type: ignore[call-overload]
    return entry


def _read_entry(value: object) -> OperationEntry:
    if isinstance(value, OperationEntry):
        return value
    entry = {value: {}} if isinstance(value, str) else value
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("an operation is a mapping with one key, its name: `- remove_nodes: {...}`")
    name = str(next(iter(entry)))
    if name not in operation_names():
        raise ValueError(f"there is no operation `{name}`; {suggest(name, operation_names())}")
    given = {} if entry[name] is None else entry[name]
    # JSON, because strict validation of JSON accepts a list for a tuple and still rejects "10" for 10
    return entry_type(name).model_validate_json(json.dumps({name: given}, default=str))


class _ByName:
    """Validation of an entry by its only key."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def write(entry: OperationEntry, info: SerializationInfo) -> dict[str, Any]:
            return entry.model_dump(mode=info.mode, exclude_defaults=info.exclude_defaults)

        return core_schema.no_info_plain_validator_function(
            _read_entry, serialization=core_schema.plain_serializer_function_ser_schema(write, info_arg=True)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        types = {name: operation for name in operation_names() if (operation := find_operation(name))}
        for operation in types.values():
            operation.model_rebuild()  # where it has not been used yet
        settings = {
            name: operation.__get_pydantic_json_schema__(operation.__pydantic_core_schema__, handler)
            for name, operation in types.items()
        }
        optional = [
            name
            for name, operation in types.items()
            if not any(field.is_required() for field in operation.model_fields.values())
        ]
        settings |= {name: {"anyOf": [settings[name], {"type": "null"}]} for name in optional}
        # one mapping with all names, not a choice of mappings with one each: editors then report errors inside it
        entry = {"type": "object", "properties": settings, "additionalProperties": False}
        entry |= {"minProperties": 1, "maxProperties": 1}
        return {"title": "operation", "oneOf": [{"enum": optional}, entry]}


AnyOperation = Annotated[OperationEntry, _ByName()]
"""A setting that is one operation."""
