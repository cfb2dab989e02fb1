"""Put another model beside this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Words
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MergeModel(Operation):
    """Put another model beside this one: one model with the inputs and outputs of both.

        merge_model: {model: classifier, share_inputs: [images]}

    The model of the older opset is converted; names that are taken get the other model's name before them.
    """

    about = "parts and other models"

    model: Annotated[str, Reads(Onnx)]
    """An earlier step that makes a model, or a model of the recipe."""
    share_inputs: Words = ()
    """Inputs that both have and that become one."""
    prefix: str | None = None
    """Comes before the names of all its nodes and tensors."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.chaining import merge_model

        joined = merge_model(edited, self.model, self.share_inputs, self.prefix)
        return f"{len(joined.nodes)} nodes added"
