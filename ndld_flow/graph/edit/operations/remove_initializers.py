"""Remove initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveInitializers(Operation):
    """Remove initializers that nothing reads.

        remove_initializers: {select: "debug_*"}

    One that is read is refused, unless `force` may take it out of inputs that its readers can do without.
    """

    about = "weights"

    select: TensorsSelected | None = None
    """Which; all that nothing reads unless said."""
    force: bool = False
    """Leave optional inputs that read it empty."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import remove_initializers

        return f"{remove_initializers(edited, self)} initializers removed"
