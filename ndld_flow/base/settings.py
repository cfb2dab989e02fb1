"""The base class of settings: frozen, strict, each field documented by the docstring below it.

Only help, schema and messages need the docstrings, which are read from the source on demand. pydantic's
`use_attribute_docstrings` reads them whenever a class is defined: a third of the time of a run that reuses everything.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, to_jsonable_python


class Settings(BaseModel):
    """Settings that a user writes. Unknown keys are rejected; nothing is converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    synonyms: ClassVar[Mapping[str, str]] = {}
    """Words of other tools -> the setting here, for the hint of an unknown setting."""

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:  # noqa: ANN401
        """Return the settings of a JSON text, in which the keys of a `FlatUnion` are among the others."""
        found = flat_union(cls)
        if found is None:
            return super().model_validate_json(json_data, **options)
        # Nested before pydantic sees it: one of pydantic's validators would turn JSON lists into Python lists, which no
        # tuple accepts.
        name, union = found
        values = json.loads(json_data)
        nested, foreign = union.nest(values, name, cls.model_fields.keys() - {name})
        settings = super().model_validate_json(json.dumps(nested), **options)
        if foreign:
            error = PydanticCustomError("value_error", "{error}", {"error": foreign})
            raise ValidationError.from_exception_data(cls.__name__, [{"type": error, "input": values}])
        return settings

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        properties = resolved.get("properties", {})
        for name, text in describe_settings(cls).items():
            if name in cls.model_fields:
                properties[cls.model_fields[name].alias or name]["description"] = text
        found = flat_union(cls)
        if found is not None:
            name, union = found
            parts = [handler.resolve_ref_schema(part)["properties"] for part in properties.pop(name)["oneOf"]]
            resolved["properties"] = union.join_properties(parts, properties)
        return schema


@dataclass(frozen=True)
class FlatUnion:
    """Marks a setting that is one of several classes of settings, whose keys are written among the others in a recipe.

    ``runtime: Annotated[RuntimeSettings, FlatUnion("backend", find_settings)]``
    """

    discriminator: str
    """The key whose value chooses the class. In each class it is a `Literal`."""
    find_classes: Callable[[], Sequence[Any]]
    """Returns the classes, each with a `title`. The discriminator has a default in the first one only."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        union: Any = Union[tuple(self.find_classes())]  # noqa: UP007 - made of a sequence
        return handler.generate_schema(Annotated[union, Field(discriminator=self.discriminator)])

    def default(self) -> Any:  # noqa: ANN401
        """Return the default settings of the first class."""
        return self.find_classes()[0]()

    def names_of(self, choice: type[BaseModel]) -> tuple[str, ...]:
        """Return the values of the discriminator that choose a class."""
        return get_args(choice.model_fields[self.discriminator].annotation)

    def nest(self, values: Any, name: str, own: Set[str]) -> tuple[Any, str]:  # noqa: ANN401
        """Return the values of a recipe with those of the chosen class under `name`, and a mistake in a sentence.

        Settings of another class are dropped if they have its defaults: a recorded recipe may contain them.
        """
        if not isinstance(values, dict):
            return values, ""
        classes = self.find_classes()
        inner = {self.discriminator: self.names_of(classes[0])[0]}
        inner |= {key: value for key, value in values.items() if key not in own}
        chosen = inner[self.discriminator]
        choice = next((each for each in classes if chosen in self.names_of(each)), classes[0])
        others = {
            key: [each for each in classes if key in each.model_fields]
            for key in inner
            if key not in choice.model_fields
        }
        foreign = []
        for key, owners in others.items():
            if owners and all(inner[key] != to_jsonable_python(owner.model_fields[key].default) for owner in owners):
                foreign.append(key)
            if owners:
                del inner[key]
        nested = {key: value for key, value in values.items() if key in own} | {name: inner}
        return nested, self._refuse(foreign, others, chosen) if foreign else ""

    def _refuse(self, foreign: Sequence[str], owners: Mapping[str, Sequence[Any]], chosen: object) -> str:
        listed = ", ".join(f"`{key}`" for key in foreign)
        titles = " or ".join(owner.title for owner in owners[foreign[0]])
        names = [name for owner in owners[foreign[0]] for name in self.names_of(owner)]
        remedy = " or ".join(f"`{self.discriminator}: {name}`" for name in names)
        return (
            f"{listed}: for {titles} only, but this step has `{self.discriminator}: {chosen}`; remove it, or set "
            f"{remedy}"
        )

    def join_properties(
        self, parts: Sequence[Mapping[str, dict[str, Any]]], own: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return the properties of a JSON Schema: the discriminator, the model's own, then those of each class."""
        choices = [part[self.discriminator] for part in parts]
        joined: dict[str, dict[str, Any]] = {
            self.discriminator: {
                **{key: value for key, value in choices[0].items() if key not in ("const", "enum")},
                "enum": [name for each in choices for name in each.get("enum", [each.get("const")])],
            },
            **own,
        }
        for part in parts:
            for key, schema in part.items():
                before = joined.setdefault(key, schema)
                if before is not schema and key != self.discriminator:  # two classes have it
                    texts = (before.get("description", ""), schema.get("description", ""))
                    joined[key] = {"anyOf": [before, schema], "description": " ".join(filter(None, texts))}
                    if "default" in before and before["default"] == schema.get("default"):
                        joined[key]["default"] = before["default"]
        return joined


@cache
def flat_union(model: type[BaseModel]) -> tuple[str, FlatUnion] | None:
    """Return the name of the model's setting that is a flat union, and its mark."""
    marked = ((name, mark) for name, info in model.model_fields.items() for mark in info.metadata)
    return next(((name, mark) for name, mark in marked if isinstance(mark, FlatUnion)), None)


def synonyms_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the words of other tools for settings of a model, those of a flat union included."""
    found = flat_union(model)
    classes = (*(found[1].find_classes() if found is not None else ()), model)
    return {word: name for cls in classes if issubclass(cls, Settings) for word, name in cls.synonyms.items()}


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys of a recipe: those of a flat union instead of the union."""
    fields = dict(model.model_fields)
    found = flat_union(model)
    if found is not None:
        name, union = found
        del fields[name]
        for choice in union.find_classes():
            fields = choice.model_fields | fields
    return fields


def values_of(settings: BaseModel) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield key, field and value of each setting: those of the chosen class instead of a flat union."""
    found = flat_union(type(settings))
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        if found is not None and name == found[0]:
            yield from values_of(value)
        else:
            yield name, info, value


@cache
def describe_settings(model: type[BaseModel]) -> dict[str, str]:
    """Return the documentation of each field of a model that has one, those of a flat union included."""
    documented: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, Settings):
            for name in inspect.get_annotations(cls):
                documented.pop(name, None)  # a redeclared field does not inherit its documentation
            documented |= read_docstrings(cls)
    described = {name: info.description or documented.get(name, "") for name, info in model.model_fields.items()}
    found = flat_union(model)
    for choice in found[1].find_classes() if found is not None else ():
        described = describe_settings(choice) | described
    return {name: text for name, text in described.items() if text}


def read_docstrings(cls: type) -> dict[str, str]:
    """Return the string literal below each annotated name of a class; empty for a class without source."""
    module = sys.modules.get(cls.__module__)
    try:
        definition = _parse_classes(inspect.getsource(module)).get(cls.__qualname__) if module is not None else None
    except (OSError, TypeError, SyntaxError):
        return {}
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(definition.body if definition is not None else [])
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


@lru_cache(maxsize=256)
def _parse_classes(source: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by their qualified names. Parsing it once takes less time than once per class."""
    classes: dict[str, ast.ClassDef] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                classes[f"{prefix}{child.name}"] = child
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.stmt):
                visit(child, prefix)

    visit(ast.parse(source), "")
    return classes
