"""Merge another model into this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import JoinOperation
from ndld_flow.graph.edit.settings import Words

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MergeModel(JoinOperation):
    """Merge another model into this one, side by side: the result has the inputs and outputs of both.

        merge_model: {model: classifier, share_inputs: [images]}

    The model with the older opset is converted; names that are already used get the other model's name as a prefix.
    """

    share_inputs: Words = ()
    """Inputs of both models that become one."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import merge_model

        joined = merge_model(edited, self.model, self.share_inputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} added"
