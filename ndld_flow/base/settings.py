"""The base class of settings: frozen, strict, each field documented by the docstring below it.

Only help, schema and messages need the docstrings, which are read from the source on demand. pydantic's
`use_attribute_docstrings` reads them whenever a class is defined: a third of the time of a run that reuses everything.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Settings(BaseModel):
    """Settings that a person writes. Unknown keys are refused; nothing is converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in describe_settings(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        return schema


@cache
def describe_settings(model: type[BaseModel]) -> dict[str, str]:
    """Return the documentation of each field of a model that has one."""
    documented: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, Settings):
            for name in inspect.get_annotations(cls):
                documented.pop(name, None)  # a redeclared field does not inherit its documentation
            documented |= _read_docstrings(cls)
    described = {name: info.description or documented.get(name, "") for name, info in model.model_fields.items()}
    return {name: text for name, text in described.items() if text}


def _read_docstrings(cls: type) -> dict[str, str]:
    """Return the string literal below each annotated name of a class; empty for a class without source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
