"""Replace Erf by other operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ReplaceErf(Operation):
    """Replace Erf, a part of the exact Gelu, by other operators; the error is recorded.

    replace_erf: {by: tanh}
    """

    heading = "transformations"
    keeps_outputs = True

    by: Literal["tanh", "polynomial"]
    """`tanh`: the usual approximation of Gelu (error up to 3.6e-4); `polynomial`: as accurate as fp32 (error up to
    1.5e-7), uses Exp."""
    select: Select = NodeSelect(op_type=("Erf",))
    """Erf nodes; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when there is no Erf."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.erf_formulas import replace_erfs

        count = replace_erfs(edited, edited.select_nodes(self.select, self.allow_empty), self.by)
        if not count and not self.allow_empty:
            raise RequestError("there is no Erf among the selected nodes; `allow_empty: true` accepts that")
        return f"{count} Erf replaced"
