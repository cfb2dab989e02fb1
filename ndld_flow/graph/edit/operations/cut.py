"""Cut off a part of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Cut(Operation):
    """Cut off nodes: tensors that they read become outputs, tensors that the rest reads from them become inputs.

        cut: {select: {after: logits}}
        cut: {select: {after: [p3, p4, p5]}}

    This cuts off everything after a tensor, such as post-processing, or after several, such as the head of a detector
    with three scales; `before` cuts off preprocessing. `extract` with
    the same `select` makes a model of the part that is cut off, and `append_model` reattaches it.
    """

    heading = "extracting and combining"

    select: Select
    """Nodes of the main graph to cut off."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, rest_without
        from ndld_flow.graph.edit.interface import show_interface

        count = len(edited.model.graph)
        keep_only(edited, rest_without(edited, edited.select_nodes(self.select)), self.types)
        return f"{counted(count - len(edited.model.graph), 'node')} cut off: {show_interface(edited.model)}"
