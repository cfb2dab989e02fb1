"""Which constant tensors an operation is about, as a recipe says it: initializers, and Constant nodes where asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ndld_flow.base.settings import Settings
from ndld_flow.base.units import Bytes
from ndld_flow.graph.edit.selection import Patterns, Select, Words, refuse_empty_lists
from ndld_flow.graph.edit.shorthand import AlsoWritten


def _named(value: object) -> object:
    """`select: w_*` and a list of such patterns mean names."""
    return {"name": value} if isinstance(value, str | list | tuple) else value


class TensorSelect(Settings):
    """Which initializers: those that fit everything that is said.

    Of a list of patterns, one is enough. Subgraphs are looked through too. A bare pattern, or a list of them, means the
    name:

        select: {dtype: float32, larger_than: 1 MiB, read_by: {op_type: MatMul}}
        select: "layers.*.weight"
    """

    name: Patterns = ()
    """Its name; of a Constant node, the name of what it makes."""
    dtype: Words = ()
    """Its element type, such as `float32`."""
    shape: Annotated[tuple[int | None, ...], Field(strict=False)] | None = None
    """Its shape; `null` stands for any size."""
    rank: int | None = Field(default=None, ge=0)
    """Its number of dimensions."""
    larger_than: Bytes | None = None
    """More bytes than this, such as `64 MiB`."""
    smaller_than: Bytes | None = None
    """Fewer bytes than this."""
    scope: Patterns | None = None
    """Where it stands: `""` is the main graph, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    read_by: Select | None = None
    """Only what such nodes read."""
    stored: Literal["inline", "external", "sparse"] | None = None
    """How it is stored: in the model, in a data file, or by its values other than 0."""
    constants: bool = False
    """Take Constant nodes too."""
    exclude: TensorsSelected | None = None
    """Tensors to leave out."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError('say which tensors: by `name`, `dtype`, `larger_than`, ...; `"*"` means all')
        refuse_empty_lists(self, ("name", "dtype", "scope"))
        return self

    @model_serializer(mode="wrap")
    def _write_what_is_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Most of a selection is never said: records and reports show the rest."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


TensorsSelected = Annotated[TensorSelect, AlsoWritten(_named, ("text", "texts"))]
"""A setting that selects initializers; a bare pattern means their names."""

TensorSelect.model_rebuild()
