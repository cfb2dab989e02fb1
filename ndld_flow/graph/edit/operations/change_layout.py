"""Change the layout of inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


Layout = Literal["NHWC", "NCHW", "NDHWC", "NCDHW", "NWC", "NCW", "HWC", "CHW"]


class ChangeLayout(Operation):
    """Change the layout of inputs and outputs, such as from NCHW to NHWC.

    The declared shapes change, names of dimensions stay. A Transpose at each changed input or output keeps the rest of
    the model as it is, so all results are exactly the same.

        change_layout: {inputs: image, to: NHWC, push: true}
    """

    heading = "transformations"

    inputs: Patterns = ()
    """Inputs to change."""
    outputs: Patterns = ()
    """Outputs to change."""
    to: Layout
    """The new layout. The current one has the channels at the other end: `NHWC` changes NCHW tensors."""
    push: bool = False
    """Move Transposes, including those of the model, through nodes that can compute in either layout (elementwise, Pad,
    Concat, Slice, Split, Softmax, reductions, Q/DQ) where that leaves fewer of them."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("give `inputs` or `outputs`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.layouts import change_layouts

        names, fewer = change_layouts(edited, self.inputs, self.outputs, self.to, self.push)
        pushed = f"; pushing removed {fewer} Transposes" if fewer else ""
        return f"{', '.join(names)} in {self.to}{pushed}"
