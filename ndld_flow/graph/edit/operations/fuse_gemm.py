"""MatMul and Add as Gemm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class FuseGemm(Operation):
    """Write MatMul + Add as one Gemm.

    Both factors must be matrices (rank 2) of known dtype and what is added a constant row; the product may have no
    other reader. Results are the same up to the last bits (1e-6 of the largest for fp32).

        fuse_gemm: {}
    """

    about = "named surgeries"
    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Add",))
    """Which Add nodes; others are passed over."""
    allow_empty: bool = False
    """Let it pass when there is no such pair."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.gemm import fuse_gemms

        count = fuse_gemms(edited, edited.select_nodes(self.select, self.allow_empty))
        if not count and not self.allow_empty:
            raise RequestError(
                "no selected Add adds a constant row to a MatMul of two matrices; `allow_empty: true` lets it pass"
            )
        return f"{count} MatMul + Add fused to Gemm"
