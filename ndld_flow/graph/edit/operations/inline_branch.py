"""Replace an If by one of its branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InlineBranch(Operation):
    """Replace an If by the nodes of one of its branches; the other branch and unused nodes are removed.

    inline_branch: {select: If_0, branch: then_branch}
    """

    heading = "subgraphs"

    select: Select
    """If nodes to replace."""
    branch: Literal["then_branch", "else_branch"]
    """The branch to keep."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.subgraphs import inline_branches

        nodes = edited.select_nodes(self.select, self.allow_empty)
        inline_branches(edited, nodes, self.branch)
        return f"{len(nodes)} Ifs replaced by their {self.branch}"
