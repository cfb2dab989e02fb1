"""Make dimensions of inputs free again, by a name or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.declaration import DimName
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class FreeDims(Operation):
    """Make dimensions of inputs free again, by a name or without one.

    An output that stays fixed is told of with the node that fixes it, such as a Reshape to constant sizes.

        free_dims: {axes: {0: batch, 2: height, 3: width}, inputs: image}
    """

    about = "shapes"

    axes: dict[int, DimName | None] = Field(min_length=1)
    """Axis -> the dimension's name; null leaves it without one. Axes count from 0, or from the end by -1, -2, ..."""
    inputs: Patterns = ("*",)
    """Inputs, by names, globs or `/regex/`; all by default."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import free_dims, show_inputs
        from ndld_flow.graph.edit.interface import pick
        from ndld_flow.models.input_shapes import real_inputs

        free_dims(edited, self.axes, pick(real_inputs(edited.model), self.inputs, "input"))
        return show_inputs(edited.model)
