"""Insert the nodes of another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import JoinOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ImportModel(JoinOperation):
    """Insert the nodes of another model into this one, as separate nodes or as a local function.

        import_model: {model: attention, connect: {x: features}, outputs: {y: attended}, prefix: att_}

    Inputs of the other model that are not connected become inputs of this one. Outputs that are not listed in `outputs`
    are tensors that later operations can connect. The model with the older opset is converted; names that are already
    used get the other model's name as a prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of the other model -> tensor of this model to read."""
    outputs: dict[str, str] = Field(default={})
    """Output of the other model -> its name as an output of this model."""
    as_function: str | None = None
    """`domain::Name`: insert a local function of this name and one node that calls it, instead of separate nodes."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import call_as_function, import_model

        joined = import_model(edited, self.model, self.connect, self.outputs, self.prefix)
        if self.as_function is not None:
            call_as_function(edited, joined, self.as_function)
        return f"{counted(len(joined.nodes), 'node')} imported"
