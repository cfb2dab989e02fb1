"""Selections of nodes and of constant tensors in recipes, and templates for new names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import NamePattern, groups_found, is_regex
from ndld_flow.base.quantities import Bytes
from ndld_flow.base.settings import Settings
from ndld_flow.base.text import suggest

Form = Literal["text", "texts"]
"""YAML type of a shorthand."""

_SCHEMAS: dict[Form, JsonSchemaValue] = {
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
}


@dataclass(frozen=True)
class Shorthand:
    """Marks a setting that has a shorthand, which an editor's schema knows too."""

    expand: Callable[[Any], Any]
    """The shorthand -> the full form, which is returned unchanged.

    Pydantic validates the result as Python and no longer as JSON: a tuple must be one, or be `Field(strict=False)`.
    """
    forms: tuple[Form, ...]
    """The shorthands, for editors."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*(_SCHEMAS[form] for form in self.forms), handler(schema)]}


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_names(value: object) -> object:
    """Expand `select: conv_*`, or a list of such patterns, to a selection by name."""
    return {"name": value} if isinstance(value, str | list | tuple) else value


Patterns = Annotated[tuple[NamePattern, ...], Shorthand(_as_list, ("text",))]
"""A pattern or a list of patterns, of which one must match: a name, a glob, or `/.../` for a regular expression in
RE2's syntax."""
Words = Annotated[tuple[str, ...], Shorthand(_as_list, ("text",))]
"""A text or a list of texts."""


def _refuse_empty_lists(selection: BaseModel, settings: Iterable[str]) -> None:
    """Raise `ValueError` for an empty list of patterns, which would otherwise match everything."""
    for setting in settings:
        if setting in selection.model_fields_set and getattr(selection, setting) == ():
            raise ValueError(f'`{setting}` is an empty list, which matches nothing; `"*"` means all')


class NodeSelect(Settings):
    """Nodes that meet all of the given criteria.

    Of a list of patterns, one must match. Subgraphs and local functions are searched too. A bare pattern, or a list of
    them, means the name:

        select: {op_type: [Conv, ConvTranspose], after: input_norm, exclude: {name: "head.*"}}
        select: /^layers[.][0-3][.]/
    """

    name: Patterns = ()
    """Name of the node."""
    op_type: Patterns = ()
    """Operator, such as `Conv`; of other domains `com.microsoft::FusedConv` or `com.microsoft::*`."""
    domain: Patterns = ()
    """Domain of the operator; `ai.onnx` is the default domain."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Attribute -> value, set on the node or by default; `null` means that the node does not set it."""
    input: Patterns = ()
    """Name of an input tensor."""
    output: Patterns = ()
    """Name of an output tensor."""
    precision: Words = ()
    """Requested precision, such as `fp16`; `none` for nodes without."""
    scope: Patterns | None = None
    """Graph: `""` is the main graph, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    between: Annotated[tuple[str, str], Field(strict=False)] | None = None
    """Two nodes or tensors: nodes on a path from the first to the second, including the two if they are nodes."""
    before: str | None = None
    """A node or tensor: nodes that it depends on."""
    after: str | None = None
    """A node or tensor: nodes that depend on it."""
    near: str | None = None
    """A node or tensor: nodes at most `hops` edges away in either direction, including itself."""
    hops: int = Field(default=1, ge=1)
    """Maximum distance for `near`."""
    exclude: Select | None = None
    """Nodes to exclude."""
    position: Literal["first", "last"] | int | None = None
    """Of the matching nodes, in the model's order, only the first, the last, or the one at this index (0 is the first,
    -1 the last)."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('select nodes by `name`, `op_type`, ...; `"*"` means all')
        _refuse_empty_lists(self, ("name", "op_type", "domain", "input", "output", "precision", "scope"))
        if "hops" in self.model_fields_set and self.near is None:
            raise ValueError("`hops` goes with `near`")
        return self

    @model_serializer(mode="wrap")
    def _write_given_settings(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only the given criteria: records and reports show these."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


Select = Annotated[NodeSelect, Shorthand(_as_names, ("text", "texts"))]
"""A setting that selects nodes; a bare pattern means their names."""

NodeSelect.model_rebuild()


class TensorSelect(Settings):
    """Initializers that meet all of the given criteria.

    Of a list of patterns, one must match. Subgraphs are searched too. A bare pattern, or a list of them, means the
    name:

        select: {dtype: float32, larger_than: 1 MiB, read_by: {op_type: MatMul}}
        select: "layers.*.weight"
    """

    name: Patterns = ()
    """Name of the initializer, or of a Constant node's output."""
    dtype: Words = ()
    """Element type, such as `float32`."""
    shape: Annotated[tuple[int | None, ...], Field(strict=False)] | None = None
    """Shape; `null` matches any size."""
    rank: int | None = Field(default=None, ge=0)
    """Number of dimensions."""
    larger_than: Bytes | None = None
    """Minimum size, exclusive, such as `64 MiB`."""
    smaller_than: Bytes | None = None
    """Maximum size, exclusive."""
    scope: Patterns | None = None
    """Graph: `""` is the main graph, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    read_by: Select | None = None
    """Nodes of which one reads it."""
    stored: Literal["inline", "external", "sparse"] | None = None
    """Storage: inside the model, in a data file, or sparse."""
    constants: bool = False
    """Include Constant nodes."""
    exclude: SelectTensors | None = None
    """Tensors to exclude."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('select tensors by `name`, `dtype`, `larger_than`, ...; `"*"` means all')
        _refuse_empty_lists(self, ("name", "dtype", "scope"))
        return self

    @model_serializer(mode="wrap")
    def _write_given_settings(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only the given criteria: records and reports show these."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


SelectTensors = Annotated[TensorSelect, Shorthand(_as_names, ("text", "texts"))]
"""A setting that selects initializers; a bare pattern means their names."""

TensorSelect.model_rebuild()


_PART = re.compile(r"\{\{|\}\}|\{(?P<word>[^{}:]*)(?::0?(?P<width>[1-9]))?\}|[{}]")
WORDS = ("name", "stem", "op_type", "index", "output")
"""Placeholders; `stem` is the part after the last `/` or `.`, `output` the first output of a node."""


def fill(template: str, facts: Mapping[str, str]) -> str:
    """Fill in the placeholders. Raises `RequestError` for a group that the pattern lacks."""

    def put(part: re.Match[str]) -> str:
        word = part["word"]
        if word is None:
            return part[0][0]
        if word not in facts:
            raise RequestError(f"{template!r}: no `/regular expression/` of `select` has a group {{{word}}}")
        return facts[word].rjust(int(part["width"] or 0), "0")

    return _PART.sub(put, template)


def groups_of(patterns: Sequence[str], name: str) -> dict[str, str]:
    """Return the groups of the first regular expression that matches a name as `1`, `2`, ...; `0` is the match."""
    for pattern in filter(is_regex, patterns):
        groups = groups_found(pattern, name)
        if groups is not None:
            return {str(number): group for number, group in enumerate(groups)}
    return {}


def stem_of(name: str) -> str:
    """Return the part after the last `/` or `.`: `/model/layers.3/Conv` -> `Conv`."""
    return re.split(r"[/.]", name.rstrip("/."))[-1]


def _check(template: str) -> str:
    for part in _PART.finditer(template):
        word = part["word"]
        if word is None and part[0] not in ("{{", "}}"):
            raise ValueError(f"{template!r} has a single `{part[0]}`; write `{part[0] * 2}` for the character itself")
        if word is not None and word not in WORDS and not word.isdecimal():
            raise ValueError(f"{template!r}: there is no {{{word}}}; {suggest(word, WORDS)}")
    return template


NameTemplate = Annotated[str, Field(min_length=1), AfterValidator(_check)]
"""A setting that is a template for names."""
