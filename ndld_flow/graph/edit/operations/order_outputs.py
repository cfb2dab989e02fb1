"""Put the model's outputs in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class OrderOutputs(Operation):
    """Put the model's outputs in another order.

    order_outputs: {order: [boxes, scores, "*"]}
    """

    about = "inputs and outputs"
    keeps_outputs = True

    order: tuple[str, ...]
    """Names in the order wanted; `*` stands for all that are not named."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import reorder

        outputs = edited.model.graph.outputs
        reorder(outputs, self.order, "output")
        return f"outputs are now {', '.join(str(value.name) for value in outputs)}"
