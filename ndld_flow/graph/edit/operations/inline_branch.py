"""Replace an If by one of its branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InlineBranch(Operation):
    """Replace an If by the nodes of one of its branches; the other one, and what only the If read, goes.

    inline_branch: {select: If_0, branch: then_branch}
    """

    about = "If, Loop, Scan"

    select: Select
    """Which Ifs."""
    branch: Literal["then_branch", "else_branch"]
    """The one that stays."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.branches import inline_branches

        nodes = edited.select_nodes(self.select, self.allow_empty)
        inline_branches(edited, nodes, self.branch)
        return f"{len(nodes)} Ifs replaced by their {self.branch}"
