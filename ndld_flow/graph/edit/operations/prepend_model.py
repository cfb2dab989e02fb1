"""Prepend another model to this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import JoinOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class PrependModel(JoinOperation):
    """Prepend another model, whose outputs this model's inputs read.

        prepend_model: {model: preprocessing, connect: {images: normalized}}

    Without `connect`, inputs read the outputs of the same names, or are matched in order when the counts are equal.
    Inputs of the same name in both models become one. The inputs of the other model come first. The model with the
    older opset is converted; names that are already used get the other model's name as a prefix.
    """

    connect: dict[str, str] = Field(default={})
    """Input of this model -> output of the prepended model. Its other outputs become outputs."""
    keep_outputs: bool = False
    """Make its outputs that were connected outputs too."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.joining import prepend_model

        joined = prepend_model(edited, self.model, self.connect, self.keep_outputs, self.prefix)
        return f"{counted(len(joined.nodes), 'node')} prepended"
