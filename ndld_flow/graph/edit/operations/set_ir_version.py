"""Set the IR version of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetIrVersion(Operation):
    """Set the IR version, which is the version of the file format.

    Before version 4 every initializer of the main graph must be an input too, and becomes one.

        set_ir_version: {to: 10}
    """

    heading = "model"
    keeps_outputs = True

    to: int = Field(ge=3)
    """3 to the newest that ONNX Runtime loads."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.ir_version import set_ir_version

        return set_ir_version(edited, self.to)
