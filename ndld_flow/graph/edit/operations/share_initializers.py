"""Keep equal initializers once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.units import Bytes
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ShareInitializers(Operation):
    """Keep initializers of one graph that have the same type, shape and bytes once.

        share_initializers: {up_to: 64 MiB}

    What read one of the others reads the first of them.
    """

    about = "weights"
    keeps_outputs = True

    up_to: Bytes = 2**40
    """Larger ones are not read; they are shared only where they lie at one place of a data file."""
    allow_empty: bool = False
    """Let it pass when no two are equal."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import share_initializers

        return f"{share_initializers(edited, self.up_to, self.allow_empty)} initializers shared"
