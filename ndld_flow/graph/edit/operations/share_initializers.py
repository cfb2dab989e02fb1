"""Deduplicate initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import Bytes
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ShareInitializers(Operation):
    """Deduplicate initializers of the same graph with equal type, shape and bytes.

        share_initializers: {up_to: 64 MiB}

    Readers of the duplicates read the first of them.
    """

    heading = "weights"
    keeps_outputs = True

    up_to: Bytes = 2**40
    """Larger ones are not compared; they are shared only when they are the same range of a data file."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.sanitize.cleanup import share_equal_initializers
        from ndld_flow.graph.sanitize.edits import Edits

        edits = Edits(edited.model, self.up_to)
        share_equal_initializers(edits)
        shared = edits.done["duplicate initializers merged"]
        if not shared:
            edited.note("no two initializers of one graph are equal")
            return "nothing to do"
        return f"{shared} duplicate initializers removed"
