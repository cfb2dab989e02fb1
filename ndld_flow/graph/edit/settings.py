"""Settings that operations share: selections, names, tensors, attributes, and conditions of rewrite rules."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
from ndld_flow.step import DataFile

Form = Literal["text", "texts"]
"""YAML type of a shorthand."""

_SCHEMAS: dict[Form, JsonSchemaValue] = {
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
}


@dataclass(frozen=True)
class Shorthand:
    """Marks a setting that has a shorthand, which is part of the schema for editors."""

    expand: Callable[[Any], Any]
    """Shorthand -> full form; the full form is returned unchanged.

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
"""A string or a list of strings."""


Anchors = str | Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
"""A node or tensor, or several."""


def as_names(anchors: Anchors) -> tuple[str, ...]:
    """Return the names of nodes or tensors that a setting gives as one or several."""
    return (anchors,) if isinstance(anchors, str) else anchors


def _reject_empty_lists(selection: BaseModel, settings: Iterable[str]) -> None:
    """Raise `ValueError` for an empty list of patterns, which would otherwise match everything."""
    for setting in settings:
        if setting in selection.model_fields_set and getattr(selection, setting) == ():
            raise ValueError(f'`{setting}` is an empty list, which matches nothing; `"*"` means all')


class _Criteria(Settings):
    """Criteria of a selection."""

    @model_serializer(mode="wrap")
    def _write_given_settings(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only the given criteria: records and reports show these."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class NodeSelect(_Criteria):
    """Nodes that meet all of the given criteria.

    If a criterion is a list of patterns, one of them must match. Subgraphs and local functions are searched too. A bare
    pattern, or a list of them, selects by name:

        select: {op_type: [Conv, ConvTranspose], after: input_norm, exclude: {name: "head.*"}}
        select: /^layers[.][0-3][.]/
    """

    name: Patterns = ()
    """Name of the node."""
    op_type: Patterns = ()
    """Operator, such as `Conv`; in other domains `com.microsoft::FusedConv` or `com.microsoft::*`."""
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
    between: Annotated[tuple[Anchors, Anchors], Field(strict=False)] | None = None
    """Two nodes or tensors: nodes on a path from the first to the second, including the two if they are nodes. Either
    may be a list: `between: [image, [p3, p4, p5]]`."""
    before: Anchors | None = None
    """A node or tensor: nodes that it depends on. Of a list: nodes that at least one depends on."""
    after: Anchors | None = None
    """A node or tensor: nodes that depend on it. Of a list: nodes that depend on at least one and that none depends on,
    so `[p3, p4, p5]` selects a head even where `p4` is computed from `p3`."""
    near: Anchors | None = None
    """A node or tensor: nodes at most `hops` edges away in either direction, including itself. Of a list: nodes near at
    least one."""
    hops: int = Field(default=1, ge=1)
    """Maximum distance for `near`."""
    exclude: "Select | None" = None
    """Nodes to exclude."""
    position: Literal["first", "last"] | int | None = None
    """Select only one of the matching nodes, in the model's order: the first, the last, or this index (0 is the first,
    -1 the last)."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('select nodes with `name`, `op_type`, ...; `"*"` means all')
        _reject_empty_lists(self, ("name", "op_type", "domain", "input", "output", "precision", "scope"))
        if "hops" in self.model_fields_set and self.near is None:
            raise ValueError("`hops` goes with `near`")
        return self


Select = Annotated[NodeSelect, Shorthand(_as_names, ("text", "texts"))]
"""A setting that selects nodes; a bare pattern selects by name."""

NodeSelect.model_rebuild()


class TensorSelect(_Criteria):
    """Initializers that meet all of the given criteria.

    If a criterion is a list of patterns, one of them must match. Subgraphs are searched too. A bare pattern, or a list
    of them, selects by name:

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
    """Nodes, at least one of which reads it."""
    stored: Literal["inline", "external", "sparse"] | None = None
    """Storage: inside the model, in a data file, or sparse."""
    constants: bool = False
    """Include Constant nodes."""
    exclude: "SelectTensors | None" = None
    """Tensors to exclude."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('select tensors with `name`, `dtype`, `larger_than`, ...; `"*"` means all')
        _reject_empty_lists(self, ("name", "dtype", "scope"))
        return self


AllowEmpty = Annotated[bool, Field(description="Succeed when nothing is selected.")]
SelectTensors = Annotated[TensorSelect, Shorthand(_as_names, ("text", "texts"))]
"""A setting that selects initializers; a bare pattern selects by name."""

TensorSelect.model_rebuild()

EVERY_TENSOR = TensorSelect(name=("*",))
"""The default of operations that clean up, for which a model without any is not an error."""


_TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{(?P<word>[^{}:]*)(?::0?(?P<width>[1-9]))?\}|[{}]")
_PLACEHOLDERS = ("name", "stem", "op_type", "index", "output")
"""Placeholders; `stem` is the part after the last `/` or `.`, `output` the first output of a node."""


def fill_template(template: str, facts: Mapping[str, str]) -> str:
    """Fill in the placeholders. Raises `RequestError` for a group that the pattern lacks."""

    def put(part: re.Match[str]) -> str:
        word = part["word"]
        if word is None:
            return part[0][0]
        if word not in facts:
            raise RequestError(f"{template!r}: no `/regular expression/` of `select` has a group {{{word}}}")
        return facts[word].rjust(int(part["width"] or 0), "0")

    return _TEMPLATE_PART.sub(put, template)


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


def _check_template(template: str) -> str:
    for part in _TEMPLATE_PART.finditer(template):
        word = part["word"]
        if word is None and part[0] not in ("{{", "}}"):
            raise ValueError(f"{template!r} has a single `{part[0]}`; write `{part[0] * 2}` for the character itself")
        if word is not None and word not in _PLACEHOLDERS and not word.isdecimal():
            raise ValueError(f"{template!r}: there is no placeholder {{{word}}}; {suggest(word, _PLACEHOLDERS)}")
    return template


NameTemplate = Annotated[str, Field(min_length=1), AfterValidator(_check_template)]
"""A setting that is a template for names."""


NewName = Annotated[str, Field(min_length=1)]
"""A name, which must not be empty."""
DimName = Annotated[str, Field(pattern=r"[^0-9]")]
"""Name of a dimension. Tools would read a quoted number as a size, and an empty name as an unnamed dimension."""
Dim = Annotated[int, Field(ge=0, lt=2**63)] | DimName | None
Dims = tuple[Dim, ...]
"""A shape with a number, a name or null (dynamic and unnamed) for each dimension."""
RandomKind = Literal["normal", "zeros", "ones", "uniform_positive", "uniform_negative"]
"""`normal`: mean 0 and standard deviation 1; rounded for integers. `uniform_positive`: above 0 and at most 1; for
integers, 1 to the type's largest value. `uniform_negative`: the same below 0. Unsigned types have no negative
numbers."""


def _as_alternatives(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class TensorDeclaration(Settings):
    """Type and shape of a tensor."""

    dtype: str
    """Element type: `float32`, `float16`, `int64`, `bool`, `string`, ..."""
    shape: Dims = Field(default=())
    """A number, a name or null (dynamic and unnamed) for each dimension: `[batch, 3, null, 640]`; `[]` is a scalar."""


class TensorValue(Settings):
    """A constant tensor: its numbers, or a `.npy` file that contains them."""

    value: JsonValue = None
    """The numbers, nested in lists, one level for each dimension: `[[1, 2], [3, 4]]`; at most 10,000."""
    file: Annotated[Path | None, DataFile()] = None
    """A `.npy` file with the numbers, relative to the current directory."""
    dtype: str | None = None
    """The element type, such as `float32`."""
    shape: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """The shape; a single number fills it."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.value is None) == (self.file is None):
            raise ValueError("give either `value` or `file`")
        return self


AttributeValue = Annotated[TensorValue | bool | int | float | str | list[JsonValue], Field(union_mode="left_to_right")]
"""`3`, `[1, 1]`, `same_upper`, or text in the grammar of values: `'[[1, 2], [3, 4]]'`, `"'It\\'s alive!'"`, `0x1F`,
`-inf`; an element type such as `float16` where ONNX uses its number; `{value: ..., dtype: ...}` or `{file: w.npy}` for
a tensor."""


class RewriteConditions(Settings):
    """Conditions on inputs and attributes of a pattern."""

    constants: dict[str, JsonValue] = Field(default={})
    """Input -> its constant value, a number or lists of numbers; `null` means any constant."""
    dtypes: dict[str, Words] = Field(default={})
    """Input -> its element type, such as `float16`, or a list of alternatives."""
    ranks: dict[str, int] = Field(default={})
    """Input -> its number of dimensions."""
    shapes: dict[str, tuple[int | str | None, ...]] = Field(default={})
    """Input -> its dimensions: numbers, names of dynamic ones, or `null` for any."""
    attributes: dict[str, Annotated[tuple[JsonValue, ...], BeforeValidator(_as_alternatives)]] = Field(default={})
    """Variable, without its `$` -> its value, or a list of alternatives; `{perm: [[0, 2, 1]]}` is one alternative."""
    single_use: Words = ()
    """Inputs that nothing outside the match reads."""
