"""Put another model's nodes into this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ImportModel(Operation):
    """Put another model's nodes into this one, as a template or as one layer.

        import_model: {model: attention, connect: {x: features}, outputs: {y: attended}, prefix: att_}

    Its inputs that are not connected become inputs of this model. Its outputs that are not handed out are tensors that
    later operations may connect. The model of the older opset is converted; names that are taken get the other model's
    name before them.
    """

    about = "parts and other models"

    model: Annotated[str, Reads(Onnx)]
    """An earlier step that makes a model, or a model of the recipe."""
    connect: dict[str, str] = Field(default={})
    """Its input -> a tensor of this model to read."""
    outputs: dict[str, str] = Field(default={})
    """Its output -> the name under which it becomes an output of this model."""
    prefix: str | None = None
    """Comes before the names of all its nodes and tensors."""
    as_function: str | None = None
    """`domain::Name`: make it a local function with one node that calls it, instead of separate nodes."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.chaining import call_as_function, import_model

        joined = import_model(edited, self.model, self.connect, self.outputs, self.prefix)
        if self.as_function is not None:
            call_as_function(edited, joined, self.as_function)
        return f"{len(joined.nodes)} nodes imported"
