"""Convert the model to another opset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SetOpset(Operation):
    """Convert the model to a newer or older opset, or set the version of another domain.

    Nodes whose operator differs between the two opsets are converted, in subgraphs and local functions too; all others
    stay unchanged. A node that cannot be converted is reported with the reason.

        set_opset: {to: 18}
    """

    heading = "model"
    keeps_outputs = True

    to: int = Field(ge=1)
    """The opset."""
    domain: str = ""
    """Another domain, such as `com.microsoft`: only its imported version is set, its nodes stay unchanged."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.opsets import convert_opset, import_domain

        if self.domain not in ("", "ai.onnx"):
            return import_domain(edited, self.domain, self.to)
        before = edited.model.opset_imports.get("", 0)
        converted = convert_opset(edited, self.to)
        counts = ", ".join(f"{count} {op_type}" for op_type, count in sorted(converted.items()))
        return f"opset {before} -> {self.to}; {f'converted: {counts}' if counts else 'no node had to change'}"
