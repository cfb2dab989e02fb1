"""Give an initializer another value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.tensor_value import WithTensorValue

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetInitializer(WithTensorValue):
    """Give an initializer, or a Constant node, another value.

        set_initializer: {name: bias, value: [0, 0, 1]}

    A single number fills the whole tensor.
    """

    about = "weights"

    name: str
    """Its name; of a Constant node, the name of what it makes."""
    scope: str = ""
    """The graph it stands in: `""` is the main one."""
    reshape: bool = False
    """Let the value have another shape than the one before."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import replace_value

        held = replace_value(edited, self)
        return f"initializer {held.name} has another value"
