"""Chain another model after this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.step import Reads
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AppendModel(Operation):
    """Chain another model after this one: its inputs read this model's outputs.

        append_model: {model: tail}

    What `cut` took off and `extract` made a model is put back so. Without `connect`, inputs read the outputs of their
    names, or in order where there are as many; what both models have as an input is one. The model of the older opset
    is converted; names that are taken get the other model's name before them.
    """

    about = "parts and other models"

    model: Annotated[str, Reads(Onnx)]
    """An earlier step that makes a model, or a model of the recipe."""
    connect: dict[str, str] = Field(default={})
    """Its input -> an output or another tensor of this model. What is left of its inputs becomes inputs."""
    keep_outputs: bool = False
    """Let outputs that were connected stay outputs too."""
    prefix: str | None = None
    """Comes before the names of all its nodes and tensors."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.chaining import append_model

        joined = append_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{len(joined.nodes)} nodes appended"
