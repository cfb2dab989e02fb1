"""Erf by other operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ReplaceErf(Operation):
    """Compute Erf, the middle of an exact Gelu, by other operators; the error is noted.

    replace_erf: {by: tanh}
    """

    about = "named surgeries"
    keeps_outputs = True

    by: Literal["tanh", "polynomial"]
    """`tanh` makes the exact Gelu its own usual approximation (at most 3.6e-4 off); `polynomial` is as good as fp32
    (at most 1.5e-7 off) and takes Exp."""
    select: Select = NodeSelect(op_type=("Erf",))
    """Which nodes; what is no Erf is passed over."""
    allow_empty: bool = False
    """Let it pass when there is no Erf."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.erf_formulas import replace_erfs

        count = replace_erfs(edited, edited.select_nodes(self.select, self.allow_empty), self.by)
        if not count and not self.allow_empty:
            raise RequestError("there is no Erf among the selected nodes; `allow_empty: true` lets it pass")
        return f"{count} Erf replaced"
