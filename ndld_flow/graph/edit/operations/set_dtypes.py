"""Set the element types of inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetDtypes(Operation):
    """Set the element types of inputs and outputs.

    By default a Cast at each input or output keeps the types inside the model; without it only the declaration changes,
    and shape inference must accept it.

        set_dtypes: {dtypes: {image: uint8, scores: float16}}
    """

    heading = "inputs and outputs"

    dtypes: dict[str, str] = Field(min_length=1)
    """Input or output -> new element type: `float32`, `float16`, `int64`, `uint8`, ..."""
    cast: bool = True
    """Insert a Cast between the input or output and the rest of the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.dtypes import cast_edges, retype_edges

        if self.cast:
            return f"{cast_edges(edited, self.dtypes)} inputs and outputs cast"
        return f"{retype_edges(edited, self.dtypes)} inputs and outputs redeclared"
