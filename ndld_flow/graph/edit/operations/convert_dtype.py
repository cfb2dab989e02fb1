"""Give tensors another element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns, Select
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ConvertDtype(Operation):
    """Give initializers, Constant nodes, and tensors in attributes another element type.

        convert_dtype: {select: {dtype: float32, larger_than: 1 KiB}, to: float16, casts: true}

    Values go to the nearest that the type has and stay within its range; integers are cut at the point. What is lost is
    counted and logged for each tensor. Without `casts` the readers see the new type: give them all inputs of one type.
    """

    about = "weights"

    to: str
    """The new element type, such as `float16`, `int32`, `int4`."""
    select: TensorsSelected | None = None
    """Which initializers; with `constants: true` Constant nodes too."""
    attributes: Select | None = None
    """Nodes whose attributes' tensors are converted, such as ConstantOfShape's."""
    between: Patterns = ()
    """Tensors that nodes make: they go through the type by one Cast there and one back, which rounds them so."""
    casts: bool = False
    """Put a Cast after each converted constant, so that its readers get the type they had."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if self.select is None and self.attributes is None and not self.between:
            raise ValueError("say what to convert: `select`, `attributes` or `between`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dtype_conversion import convert_dtype

        return convert_dtype(edited, self)
