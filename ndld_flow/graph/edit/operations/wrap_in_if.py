"""Let nodes run only when a condition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class WrapInIf(Operation):
    """Let nodes run only when a condition holds: they become the then-branch of a new If.

        wrap_in_if: {select: "denoise_*", condition: is_noisy, otherwise: {denoised: audio}}

    The else-branch hands other tensors through; `replace_subgraph` gives it more to do.
    """

    about = "If, Loop, Scan"

    select: Select
    """Which nodes, all of one graph."""
    condition: str
    """A bool of one element."""
    otherwise: dict[str, str] = Field(default={})
    """Output of the nodes -> the tensor that it is when the condition does not hold; not needed where there is one
    output and one input."""
    name: str = "If"
    """Of the new node; a number comes after it where it is taken."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.branches import wrap_in_if

        nodes = edited.select_nodes(self.select)
        made = wrap_in_if(edited, nodes, self.condition, self.otherwise, self.name)
        return f"{len(nodes)} nodes run only if {self.condition}, in {made.name}"
