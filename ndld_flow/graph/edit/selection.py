"""Which nodes an operation is about, as a recipe says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.settings import Settings
from ndld_flow.graph.edit.shorthand import AlsoWritten


def _listed(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _named(value: object) -> object:
    """`select: conv_*` and a list of such patterns mean names."""
    return {"name": value} if isinstance(value, str | list | tuple) else value


Patterns = Annotated[tuple[NamePattern, ...], AlsoWritten(_listed, ("text",))]
"""One pattern or several: a name, a glob, or `/.../` for a regular expression (in RE2's syntax); what
fits one of them fits."""
Words = Annotated[tuple[str, ...], AlsoWritten(_listed, ("text",))]


def refuse_empty_lists(select: BaseModel, settings: Iterable[str]) -> None:
    """Raises ValueError for a list of patterns that has none: what nothing is said of would be all."""
    for setting in settings:
        if setting in select.model_fields_set and getattr(select, setting) == ():
            raise ValueError(f'`{setting}` is an empty list, which nothing fits; `"*"` means all')


class NodeSelect(Settings):
    """Which nodes: those that fit everything that is said.

    Of a list of patterns, one is enough. Subgraphs and local functions are looked through too. A bare pattern, or a
    list of them, means the name:

        select: {op_type: [Conv, ConvTranspose], after: input_norm, exclude: {name: "head.*"}}
        select: /^layers[.][0-3][.]/
    """

    name: Patterns = ()
    """Its name."""
    op_type: Patterns = ()
    """Its operator, such as `Conv`; of other domains `com.microsoft::FusedConv` or `com.microsoft::*`."""
    domain: Patterns = ()
    """The operator's domain; `ai.onnx` is the default one."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Attributes that have these values, by default or because the node says so; `null` means that it does not say."""
    input: Patterns = ()
    """A tensor it reads."""
    output: Patterns = ()
    """A tensor it makes."""
    precision: Words = ()
    """The precision it was asked to have, such as `fp16`; `none` for nodes without."""
    scope: Patterns | None = None
    """Where it stands: `""` is the main graph, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    between: Annotated[tuple[str, str], Field(strict=False)] | None = None
    """Two nodes or tensors: what lies on a way from the first to the second; nodes that are named belong to it."""
    before: str | None = None
    """A node or tensor: all that it depends on."""
    after: str | None = None
    """A node or tensor: all that depends on it."""
    near: str | None = None
    """A node or tensor: what is at most `hops` edges away from it, in either direction, itself too."""
    hops: int = Field(default=1, ge=1)
    """For `near`."""
    exclude: Select | None = None
    """Nodes to leave out."""
    position: Literal["first", "last"] | int | None = None
    """Of those that fit, in the model's order, only the first, the last, or the one with this number (0 is the first,
    -1 the last)."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('say which nodes: by `name`, `op_type`, ...; `"*"` means all')
        refuse_empty_lists(self, ("name", "op_type", "domain", "input", "output", "precision", "scope"))
        if "hops" in self.model_fields_set and self.near is None:
            raise ValueError("`hops` goes with `near`")
        return self

    @model_serializer(mode="wrap")
    def _write_what_is_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Most of a selection is never said: records and reports show the rest."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


Select = Annotated[NodeSelect, AlsoWritten(_named, ("text", "texts"))]
"""A setting that selects nodes; a bare pattern means their names."""

NodeSelect.model_rebuild()


def select_all() -> NodeSelect:
    """Every node."""
    return NodeSelect(name=("*",))
