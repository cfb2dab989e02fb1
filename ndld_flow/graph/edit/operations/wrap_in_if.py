"""Run nodes only if a condition is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class WrapInIf(Operation):
    """Run nodes only if a condition is true: they become the then-branch of a new If.

        wrap_in_if: {select: "denoise_*", condition: is_noisy, otherwise: {denoised: audio}}

    The else-branch passes other tensors through; `set_subgraph` can replace it.
    """

    heading = "subgraphs"

    select: Select
    """Nodes of one graph."""
    condition: str
    """The condition, a bool tensor of one element."""
    otherwise: dict[str, str] = Field(default={})
    """Output of the nodes -> the tensor that replaces it when the condition is false; optional if there is one output
    and one input."""
    name: str = "If"
    """Name of the new node; a number is appended if it is already used."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.subgraphs import wrap_in_if

        nodes = edited.select_nodes(self.select)
        wrapper = wrap_in_if(edited, nodes, self.condition, self.otherwise, self.name)
        return f"{len(nodes)} nodes run only if {self.condition}, in {wrapper.name}"
