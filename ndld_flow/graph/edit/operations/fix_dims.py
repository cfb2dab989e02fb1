"""Give free dimensions of inputs their numbers, and infer all that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.inputs import Dimension

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class FixDims(Operation):
    """Give free dimensions of inputs their numbers, and infer all that follows.

    Without `dims` and `all` the shapes of the recipe's `inputs:` are used.

        fix_dims: {dims: {batch: 1}, all: 640}
    """

    about = "shapes"
    uses_inputs = True

    dims: dict[str, Dimension] = Field(default={})
    """Named dimension -> its size wherever it is written."""
    all: Dimension | None = None
    """Size of all free dimensions that `dims` says nothing of."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dimensions import fix_dims

        return fix_dims(edited, self.dims, self.all)
