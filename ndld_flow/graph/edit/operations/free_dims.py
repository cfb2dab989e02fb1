"""Make dimensions of inputs dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName, Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class FreeDims(Operation):
    """Make dimensions of inputs dynamic, named or unnamed.

    An output that stays static is reported with the node that makes it static, such as a Reshape to a constant shape.

        free_dims: {axes: {0: batch, 2: height, 3: width}, select: image}
    """

    heading = "shapes"

    axes: dict[int, DimName | None] = Field(min_length=1)
    """Axis -> name of the dimension; null leaves it unnamed. Axes count from 0, or from the end by -1, -2, ..."""
    select: Patterns = ("*",)
    """Inputs to change, by names, globs or `/regex/`; all by default."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import free_dims, pick, show_inputs
        from ndld_flow.models.input_shapes import real_inputs

        free_dims(edited, self.axes, pick(real_inputs(edited.model), self.select, "input"))
        return show_inputs(edited.model)
