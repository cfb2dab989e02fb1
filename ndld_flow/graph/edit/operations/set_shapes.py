"""Set the shapes of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Dims
from ndld_flow.inputs import Dimension

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetShapes(Operation):
    """Set the shapes of inputs and infer all shapes that depend on them.

        set_shapes: {shapes: {x: [1, 3, height, null]}}
        set_shapes: {dims: {batch: 1}, all: 640}

    Without settings the shapes of the recipe's `inputs:` are used. A number for a named dimension holds wherever the
    name is used.
    """

    heading = "shapes"

    shapes: dict[str, Dims] = Field(default={})
    """Input -> its shape: a number, a name or null (dynamic and unnamed) for each dimension."""
    dims: dict[str, Dimension] = Field(default={})
    """Named dimension -> its size, in all inputs."""
    all: Dimension | None = None
    """Size of all dynamic dimensions that `shapes` and `dims` do not set."""

    @property
    def uses_inputs(self) -> bool:
        return not self.shapes and not self.dims and self.all is None

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import fix_dims, set_shapes, show_inputs

        shapes: Mapping[str, Dims] = self.shapes
        if self.uses_inputs:
            shapes = {name: spec.run_shape for name, spec in edited.inputs.items() if spec.run_shape is not None}
            if not shapes:
                raise RequestError(
                    "no shapes to set: give `shapes`, `dims` or `all`, or shapes in the recipe's `inputs:`"
                )
        if shapes:
            set_shapes(edited, shapes)
        if self.dims or self.all is not None:
            fix_dims(edited, self.dims, self.all)
        return show_inputs(edited.model)
