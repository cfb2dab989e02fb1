"""Put the model's inputs in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class OrderInputs(Operation):
    """Put the model's inputs in another order.

    order_inputs: {order: [mask, x, "*"]}
    """

    about = "inputs and outputs"
    keeps_outputs = True

    order: tuple[str, ...]
    """Names in the order wanted; `*` stands for all that are not named."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import reorder

        inputs = edited.model.graph.inputs
        reorder(inputs, self.order, "input")
        return f"inputs are now {', '.join(str(value.name) for value in inputs)}"
