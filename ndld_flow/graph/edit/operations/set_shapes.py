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
        from ndld_flow.graph.edit.interface import show_inputs

        shapes: Mapping[str, Dims] = self.shapes
        if self.uses_inputs:
            shapes = {name: spec.run_shape for name, spec in edited.inputs.items() if spec.run_shape is not None}
            if not shapes:
                raise RequestError(
                    "no shapes to set: give `shapes`, `dims` or `all`, or shapes in the recipe's `inputs:`"
                )
        if shapes:
            _set_shapes(edited, shapes)
        if self.dims or self.all is not None:
            self._fix_dims(edited)
        return show_inputs(edited.model)

    def _fix_dims(self, edited: EditedModel) -> None:
        """Set dimensions of inputs to sizes by name, and all other dynamic ones to `all`."""
        from ndld_flow.graph.edit.interface import change_shapes
        from ndld_flow.models.input_shapes import check_dims, dim_names, real_inputs

        model, rest = edited.model, self.all
        check_dims(model, self.dims)
        if rest is None:
            change_shapes(edited, {}, self.dims)
            return
        sizes = {**dict.fromkeys(dim_names(model), rest), **self.dims}
        shapes = {
            value.name or "": [dim if isinstance(dim, int) else sizes.get(str(dim.value), rest) for dim in value.shape]
            for value in real_inputs(model)
            if value.shape is not None
        }
        change_shapes(edited, shapes, sizes)


def _set_shapes(edited: EditedModel, shapes: Mapping[str, Dims]) -> None:
    """Set shapes of inputs and infer all others.

    Raises `RequestError` for an unknown input or another rank, `ModelError` if the model does not support the shapes.
    """
    from ndld_flow.graph.edit.interface import change_shapes
    from ndld_flow.models.input_shapes import check_shapes, dims_from_shapes

    check_shapes(edited.model, shapes, "shapes")
    numbers = {name: tuple(dim if isinstance(dim, int) else -1 for dim in shape) for name, shape in shapes.items()}
    sizes = dims_from_shapes(edited.model, numbers, {}, "shapes")
    change_shapes(edited, shapes, {name: size for name, size in sizes.items() if size >= 0})
