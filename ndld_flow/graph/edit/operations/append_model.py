"""Append another model to this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import JoinOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AppendModel(JoinOperation):
    """Append another model, whose inputs read this model's outputs.

        append_model: {model: tail}

    This reverses a `cut` when `extract` made a model of the other part. Without `connect`, inputs read the outputs of
    the same names, or are matched in order when the counts are equal. Inputs of the same name in both models become
    one. The model with the older opset is converted; names that are already used get the other model's name as a
    prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of the appended model -> output or other tensor of this model. Its other inputs become inputs."""
    keep_outputs: bool = False
    """Keep outputs that were connected as outputs of the model."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import append_model

        joined = append_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} appended"
