"""Make tensors outputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Dims, Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddOutputs(Operation):
    """Make tensors of the main graph outputs of the model.

    add_outputs: {select: ["/backbone/*/Relu_output_0", features]}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    select: Patterns
    """Names, globs or `/regex/` of node outputs; inputs and initializers by their exact names. New outputs are
    appended to the existing ones."""
    dtype: str | None = None
    """Element type of tensors whose type cannot be inferred, such as outputs of custom operators."""
    shape: Dims | None = None
    """Shape of tensors whose shape cannot be inferred."""
    allow_empty: bool = False
    """Succeed when all of them are outputs already."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import Declared, add_outputs

        added = add_outputs(edited, self.select, Declared(self.dtype, self.shape))
        if not added and not self.allow_empty:
            raise RequestError("all of them are outputs already; `allow_empty: true` accepts that")
        return f"{len(added)} outputs added: {', '.join(str(value.name) for value in added)}"
