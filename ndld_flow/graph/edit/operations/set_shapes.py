"""Give inputs other shapes, and infer all that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.declaration import Dims
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetShapes(Operation):
    """Give inputs other shapes, and infer all that follows.

    A number in the place of a named dimension holds wherever that name is written.

        set_shapes: {shapes: {x: [1, 3, height, null]}}
    """

    about = "shapes"

    shapes: dict[str, Dims] = Field(min_length=1)
    """Input -> its shape: a number, a name or null (free without a name) for each dimension."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import set_shapes, show_inputs

        set_shapes(edited, self.shapes)
        return show_inputs(edited.model)
