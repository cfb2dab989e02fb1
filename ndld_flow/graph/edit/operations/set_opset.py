"""Convert the model to another opset, up or down, or import a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetOpset(Operation):
    """Convert the model to another opset, up or down, or import a domain.

    Nodes whose operator has another version there are converted, in subgraphs and local functions too; the others stay
    untouched. A node that cannot be converted is named with the reason.

        set_opset: {to: 18}
    """

    about = "the model"
    keeps_outputs = True

    to: int = Field(ge=1)
    """The opset."""
    domain: str = ""
    """Of another domain only the import is set, such as 1 for `com.microsoft`: its nodes stay as they are."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.opsets import convert_opset, import_domain

        if self.domain not in ("", "ai.onnx"):
            return import_domain(edited, self.domain, self.to)
        before = edited.model.opset_imports.get("", 0)
        converted = convert_opset(edited, self.to)
        told = ", ".join(f"{count} {op_type}" for op_type, count in sorted(converted.items()))
        return f"opset {before} -> {self.to}; {f'converted: {told}' if told else 'no node had to change'}"
