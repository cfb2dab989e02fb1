"""Add a sparse initializer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import DataFile

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddSparseInitializer(Operation):
    """Add an initializer that is kept by its values other than 0.

        add_sparse_initializer: {name: mask, values: [1.5, -2], indices: [[0, 1], [2, 3]], shape: [3, 4]}

    Numbers that are many stand in `.npy` files: `values_file` and `indices_file`.
    """

    about = "how weights are kept"

    name: str
    """Its name; no other tensor or node may have it."""
    values: JsonValue = None
    """The values other than 0: a list of at most 10,000."""
    values_file: Annotated[Path | None, DataFile()] = None
    """The same from a `.npy` file."""
    indices: JsonValue = None
    """Where they stand, in rising order: a number for each, counted through the whole tensor, or a row of coordinates
    for each."""
    indices_file: Annotated[Path | None, DataFile()] = None
    """The same from a `.npy` file."""
    shape: tuple[int, ...] = Field(min_length=1)
    """The shape of the whole tensor."""
    dtype: str = "float32"
    """The element type."""
    scope: str = ""
    """The graph it is for: `""` is the main one."""
    connect: tuple[str, ...] = ()
    """Inputs that read it from now on: `matmul_1.B` by the operator's word, or `matmul_1.1` by number, from 0."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        for name in ("values", "indices"):
            if (getattr(self, name) is None) == (getattr(self, f"{name}_file") is None):
                raise ValueError(f"say either `{name}` or `{name}_file`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import connect_readers
        from ndld_flow.graph.edit.sparse_making import add_sparse

        connect_readers(edited, add_sparse(edited, self), self.connect)
        return f"sparse initializer {self.name} added, {len(self.connect)} inputs read it"
