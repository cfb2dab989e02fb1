"""Put weights into the model itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.units import Bytes
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InlineWeights(Operation):
    """Put weights from data files into the model itself.

        inline_weights: {smaller_than: 64 KiB}

    A model of one file holds less than 2 GB; more is refused.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected | None = None
    """Which initializers; all unless said."""
    smaller_than: Bytes | None = None
    """Larger ones stay in the data file."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.weight_places import inline

        count, words = inline(edited, self)
        return f"{count} initializers ({words}) go into the model"
