"""Store weights inside the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Bytes
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


_MAX_MODEL_BYTES = 2**31 - 2**26
"""Protobuf limits a message to 2 GiB; some of it is for nodes."""


class InlineWeights(Operation):
    """Store weights of data files inside the model.

        inline_weights: {smaller_than: 64 KiB}

    The limit of a single model file is 2 GB; more is refused.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors | None = None
    """Initializers to store there; all by default."""
    smaller_than: Bytes | None = None
    """Larger ones stay in the data file."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.base.quantities import size
        from ndld_flow.graph.edit.constant_tensors import constant_tensors, dense_initializers
        from ndld_flow.models.external_data import Placement, place

        limit = self.smaller_than
        weights = dense_initializers(edited.model, self.select, self.allow_empty)
        chosen = [weight for weight in weights if limit is None or weight.tensor.nbytes < limit]
        if not chosen and not self.allow_empty:
            raise RequestError("no selected initializer is that small")
        for weight in chosen:
            place(weight.value, Placement(None))
        total = sum(weight.tensor.nbytes for weight in constant_tensors(edited.model) if weight.is_written_inline)
        if total > _MAX_MODEL_BYTES:
            raise RequestError(
                f"the model would contain {size(total)} of weights, and the limit of one file is 2 GB. Inline only "
                "small weights (`smaller_than`), or keep them in the data file"
            )
        return f"{len(chosen)} initializers ({size(sum(weight.tensor.nbytes for weight in chosen))}) go into the model"
