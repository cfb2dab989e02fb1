"""Add an initializer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.tensor_value import WithTensorValue

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddInitializer(WithTensorValue):
    """Add an initializer, and let nodes read it.

        add_initializer: {name: scale, value: [0.5, 2], dtype: float32, connect: [mul_1.B]}

    In a local function, which holds no initializers, it becomes a Constant node.
    """

    about = "weights"

    name: str
    """Its name; no other tensor or node may have it."""
    scope: str = ""
    """The graph it is for: `""` is the main one, `If_0/then_branch` a subgraph."""
    connect: tuple[str, ...] = ()
    """Inputs that read it from now on: `conv1.B` by the operator's word, or `conv1.2` by number, from 0."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import add_initializer, connect_readers
        from ndld_flow.graph.edit.tensor_sources import Wanted, make_tensor

        value = add_initializer(edited, make_tensor(self, Wanted(self.name)), self.name, self.scope)
        connect_readers(edited, value, self.connect)
        return f"initializer {self.name} added, {len(self.connect)} inputs read it"
