"""Convert tensors to another element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, Select, SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ConvertDtype(Operation):
    """Convert initializers, Constant nodes and tensor attributes to another element type.

        convert_dtype: {select: {dtype: float32, larger_than: 1 KiB}, to: float16, casts: true}

    Values are rounded to the nearest representable value and clamped to the range of the type; conversion to integers
    truncates. Losses are counted and logged for each tensor. Without `casts` the readers see the new type: make sure
    that all inputs of a node have the types it needs.
    """

    heading = "weights"

    to: str
    """The new element type, such as `float16`, `int32`, `int4`."""
    select: SelectTensors | None = None
    """Initializers to convert; with `constants: true` Constant nodes too."""
    attributes: Select | None = None
    """Nodes whose tensor attributes are converted, such as ConstantOfShape."""
    between: Patterns = ()
    """Outputs of nodes that are rounded to the type: a Cast to it and a Cast back are inserted."""
    casts: bool = False
    """Insert a Cast after each converted constant, so that its readers get the previous type."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if self.select is None and self.attributes is None and not self.between:
            raise ValueError("select what to convert with `select`, `attributes` or `between`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors
        from ndld_flow.graph.edit.dtypes import DtypeConversion
        from ndld_flow.graph.edit.value_grammar import parse_dtype
        from ndld_flow.models.element_types import dtype_name

        dtype = parse_dtype(self.to)
        conversion = DtypeConversion(edited, dtype)
        if self.select is not None:
            conversion.constants(find_tensors(edited.model, self.select, self.allow_empty), self.casts)
        if self.attributes is not None:
            conversion.attributes(edited.select_nodes(self.attributes, self.allow_empty))
        if self.between:
            conversion.between(edited.select_values(self.between, self.allow_empty))
        lost = conversion.lost.describe(conversion.values, dtype)
        if conversion.lost.beyond or conversion.lost.vanished:
            edited.note(f"converted to {dtype_name(dtype)}: {lost}")
        converted = counted(conversion.converted, "tensor")
        return f"{converted} converted to {dtype_name(dtype)}" + (f"; {lost}" if lost else "")
