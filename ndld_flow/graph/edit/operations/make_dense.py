"""Keep sparse initializers with all their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeDense(Operation):
    """Keep sparse initializers with all their elements.

        make_dense: {select: "*"}

    Engine builders that know no sparse initializers need this.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected
    """Which initializers; of those, the sparse ones."""
    allow_empty: bool = False
    """Let it pass when no sparse one is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.sparse_making import make_dense

        return f"{make_dense(edited, self)} initializers made dense"
