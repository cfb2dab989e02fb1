"""Add an initializer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import InitializerOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInitializer(InitializerOperation):
    """Add an initializer and connect it to inputs of nodes.

        add_initializer: {name: scale, value: [0.5, 2], dtype: float32, connect: [mul_1.B]}

    In a local function, which cannot have initializers, a Constant node is added instead.
    """

    heading = "weights"

    name: str
    """Name of the initializer; must be unique among tensors and nodes."""
    scope: str = ""
    """The graph to add it to: `""` is the main graph, `If_0/then_branch` a subgraph."""
    connect: tuple[str, ...] = ()
    """Inputs that read it: `conv1.B` by the operator's name for the input, or `conv1.2` by index, from 0."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import add_initializer, connect_readers, initializer_tensor

        value = add_initializer(edited, initializer_tensor(self, self.name), self.name, self.scope)
        connect_readers(edited, value, self.connect)
        return f"initializer {self.name} added, {len(self.connect)} inputs read it"
