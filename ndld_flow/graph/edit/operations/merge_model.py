"""Merge another model into this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Words
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MergeModel(Operation):
    """Merge another model into this one, side by side: the result has the inputs and outputs of both.

        merge_model: {model: classifier, share_inputs: [images]}

    The model with the older opset is converted; names that are already used get the other model's name as a prefix.
    """

    heading = "extracting and combining"

    model: Annotated[str, Reads(Onnx)]
    """A model of the recipe, or an earlier step that produces one."""
    share_inputs: Words = ()
    """Inputs of both models that become one."""
    prefix: str | None = None
    """Prefix for the names of all merged nodes and tensors."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import merge_model

        joined = merge_model(edited, self.model, self.share_inputs, self.prefix)
        return f"{len(joined.nodes)} nodes added"
