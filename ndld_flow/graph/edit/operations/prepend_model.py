"""Prepend another model to this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class PrependModel(Operation):
    """Prepend another model, whose outputs this model's inputs read.

        prepend_model: {model: preprocessing, connect: {images: normalized}}

    Without `connect`, inputs read the outputs of the same names, or are matched in order when the counts are equal.
    Inputs of the same name in both models become one. The inputs of the other model come first. The model with the
    older opset is converted; names that are already used get the other model's name as a prefix.
    """

    heading = "extracting and combining"

    model: Annotated[str, Reads(Onnx)]
    """A model of the recipe, or an earlier step that produces one."""
    connect: dict[str, str] = Field(default={})
    """Input of this model -> output of the prepended model. Its other outputs become outputs."""
    keep_outputs: bool = False
    """Make its outputs that were connected outputs too."""
    prefix: str | None = None
    """Prefix for the names of all prepended nodes and tensors."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import prepend_model

        joined = prepend_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{len(joined.nodes)} nodes prepended"
