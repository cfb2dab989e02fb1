"""The base of all settings: frozen and strict, each field explained by the docstring below it.

The docstrings are for help, schema and messages alone, and are read from the source when one of these asks: pydantic's
`use_attribute_docstrings` reads them whenever a class is made, which took a third of a run that reuses everything.
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
    """Values that a person writes. Unknown keys are refused; nothing is converted silently."""

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
    """Fields of a model -> what they are for, where it is said."""
    told: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, Settings):
            for name in inspect.get_annotations(cls):
                told.pop(name, None)  # what is declared anew is described anew
            told |= _read_docstrings(cls)
    described = {name: info.description or told.get(name, "") for name, info in model.model_fields.items()}
    return {name: text for name, text in described.items() if text}


def _read_docstrings(cls: type) -> dict[str, str]:
    """Names that a class annotates -> the text literal right below; of a class without source, nothing."""
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
