"""Retype inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetDtypes(Operation):
    """Retype inputs and outputs.

    A Cast at the model's edge keeps everything between as it was; without it the declaration changes, and shape
    inference must agree.

        set_dtypes: {dtypes: {image: uint8, scores: float16}}
    """

    about = "inputs and outputs"

    dtypes: dict[str, str] = Field(min_length=1)
    """Input or output -> its new element type: `float32`, `float16`, `int64`, `uint8`, ..."""
    cast: bool = True
    """Put a Cast between the input or output and the rest of the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.retyping import cast_edges, retype_edges

        if self.cast:
            return f"{cast_edges(edited, self.dtypes)} inputs and outputs cast"
        return f"{retype_edges(edited, self.dtypes)} inputs and outputs declared anew"
