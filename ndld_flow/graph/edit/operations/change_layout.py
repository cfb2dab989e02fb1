"""Inputs and outputs with channels last, or first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

Layout = Literal["NHWC", "NCHW", "NDHWC", "NCDHW", "NWC", "NCW", "HWC", "CHW"]


class ChangeLayout(Operation):
    """Give inputs and outputs another order of axes, such as NHWC for a camera.

    The declared shapes change, names of dimensions stay; a Transpose inside keeps all else as it was, so every number
    stays the same.

        change_layout: {inputs: image, to: NHWC, push: true}
    """

    about = "named surgeries"

    inputs: Patterns = ()
    """Inputs to change."""
    outputs: Patterns = ()
    """Outputs to change."""
    to: Layout
    """What they become; they are what it is with the channels at the other place: `NHWC` changes NCHW tensors."""
    push: bool = False
    """Move Transposes, those of the model too, past nodes that need not know the order (elementwise, Pad, Concat,
    Slice, Split, Softmax, reductions, Q/DQ) where that leaves fewer of them."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("say which `inputs` or `outputs`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.layouts import change_layouts

        names, fewer = change_layouts(edited, self.inputs, self.outputs, self.to, self.push)
        told = f"; pushing left {fewer} Transposes fewer" if fewer else ""
        return f"{', '.join(names)} in {self.to}{told}"
