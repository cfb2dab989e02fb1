"""Cut a part of the model off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Cut(Operation):
    """Cut nodes off; what they read becomes outputs, what they made for others inputs.

        cut: {select: {after: logits}}

    That cuts everything after a tensor off, such as post-processing; `before` cuts preprocessing off. `extract` with
    the same `select` gives the part that was cut off, `append_model` puts it back.
    """

    about = "parts and other models"

    select: Select
    """Which nodes, of the main graph."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose dtype or shape the model does not tell."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, rest_without

        count = len(edited.model.graph)
        keep_only(edited, rest_without(edited, edited.select_nodes(self.select)), self.types)
        return f"{count - len(edited.model.graph)} nodes cut off"
