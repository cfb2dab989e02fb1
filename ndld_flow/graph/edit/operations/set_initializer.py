"""Set the value of an initializer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import InitializerOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetInitializer(InitializerOperation):
    """Set the value of an initializer or Constant node.

        set_initializer: {name: bias, value: [0, 0, 1]}

    A single number fills the whole tensor.
    """

    heading = "weights"

    name: str
    """Name of the initializer, or of a Constant node's output."""
    scope: str = ""
    """Its graph: `""` is the main graph."""
    reshape: bool = False
    """Allow the new value to have another shape."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_initializer, initializer_tensor, replace_tensor

        held = find_initializer(edited, self.name, self.scope)
        shape = tuple(int(dim) for dim in held.tensor.shape.numpy())
        same_shape = self.shape is None and not self.reshape
        known_shape = shape if same_shape or self.generate else None
        tensor = initializer_tensor(self, held.name, held.tensor.dtype, known_shape)
        if not self.reshape and tuple(tensor.shape.numpy()) != shape:
            raise RequestError(f"{held.name!r} has the shape {list(shape)}; `reshape: true` allows another")
        replace_tensor(held, tensor)
        return f"value of initializer {held.name} set"
