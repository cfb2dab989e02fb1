"""Chain another model before this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class PrependModel(Operation):
    """Chain another model before this one: this model's inputs read its outputs.

        prepend_model: {model: preprocessing, connect: {images: normalized}}

    Without `connect`, inputs read the outputs of their names, or in order where there are as many; what both models
    have as an input is one. Its inputs come first. The model of the older opset is converted; names that are taken get
    the other model's name before them.
    """

    about = "parts and other models"

    model: Annotated[str, Reads(Onnx)]
    """An earlier step that makes a model, or a model of the recipe."""
    connect: dict[str, str] = Field(default={})
    """An input of this model -> its output. Those of its outputs that are left become outputs."""
    keep_outputs: bool = False
    """Let its outputs that were connected be outputs too."""
    prefix: str | None = None
    """Comes before the names of all its nodes and tensors."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.chaining import prepend_model

        joined = prepend_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{len(joined.nodes)} nodes prepended"
