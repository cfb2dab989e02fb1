"""Make tensors of the main graph outputs too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.declaration import Dims
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddOutputs(Operation):
    """Make tensors of the main graph outputs too.

    add_outputs: {outputs: ["/backbone/*/Relu_output_0", features]}
    """

    about = "inputs and outputs"
    keeps_outputs = True

    outputs: Patterns
    """Names, globs or `/regex/` of what nodes make; an input or initializer in full. They come after the outputs there
    are."""
    dtype: str | None = None
    """Element type of those whose type cannot be inferred, as custom operators make them."""
    shape: Dims | None = None
    """Shape of those whose shape cannot be inferred."""
    allow_empty: bool = False
    """Let it pass when all of them are outputs already."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import Declared, add_outputs

        added = add_outputs(edited, self.outputs, Declared(self.dtype, self.shape))
        if not added and not self.allow_empty:
            raise RequestError("all of them are outputs already; `allow_empty: true` lets it pass")
        return f"{len(added)} outputs added: {', '.join(str(value.name) for value in added)}"
