"""Add a sparse initializer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import TensorValue
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddSparseInitializer(Operation):
    """Add an initializer that is stored as its nonzero values and their positions.

        add_sparse_initializer: {name: mask, values: [1.5, -2], indices: [[0, 1], [2, 3]], shape: [3, 4]}

    Long lists can be read from `.npy` files: `values_file` and `indices_file`.
    """

    heading = "weight storage"

    name: str
    """Name of the initializer; must be unique among tensors and nodes."""
    values: JsonValue = None
    """The nonzero values: a list of at most 10,000."""
    values_file: Annotated[Path | None, DataFile()] = None
    """The values in a `.npy` file."""
    indices: JsonValue = None
    """Their positions, in ascending order: an index into the flattened tensor or a row of coordinates for each."""
    indices_file: Annotated[Path | None, DataFile()] = None
    """The positions in a `.npy` file."""
    shape: tuple[int, ...] = Field(min_length=1)
    """Shape of the dense tensor."""
    dtype: str = "float32"
    """Element type."""
    scope: str = ""
    """The graph to add it to: `""` is the main graph."""
    connect: tuple[str, ...] = ()
    """Inputs that read it: `matmul_1.B` by the operator's name for the input, or `matmul_1.1` by index, from 0."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        for name in ("values", "indices"):
            if (getattr(self, name) is None) == (getattr(self, f"{name}_file") is None):
                raise ValueError(f"give either `{name}` or `{name}_file`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from onnx_ir import DataType

        from ndld_flow.graph.edit.constant_tensors import (
            FIRST_WITH_SPARSE_INITIALIZERS,
            add_initializer,
            connect_readers,
            make_tensor,
            sparse_of,
        )
        from ndld_flow.graph.edit.value_grammar import parse_dtype

        if "::" in self.scope:
            raise RequestError(f"{self.scope!r} is a local function, which cannot have initializers")
        written = TensorValue(value=self.values, file=self.values_file)
        values = make_tensor(written, self.name, parse_dtype(self.dtype))
        written = TensorValue(value=self.indices, file=self.indices_file)
        indices = make_tensor(written, f"{self.name}_indices", DataType.INT64)
        value = add_initializer(edited, sparse_of(values, indices, self.shape, self.name), self.name, self.scope)
        edited.raise_ir_version(FIRST_WITH_SPARSE_INITIALIZERS)
        connect_readers(edited, value, self.connect)
        return f"sparse initializer {self.name} added, {len(self.connect)} inputs read it"
