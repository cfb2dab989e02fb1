"""Fuse MatMul and Add into Gemm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class FuseGemm(Operation):
    """Fuse MatMul and Add into Gemm.

    Both factors must be matrices (rank 2) of known type, the addend a constant row, and the product must have no other
    reader. Results agree up to rounding (1e-6 of the largest for fp32).

        fuse_gemm: {}
    """

    heading = "transformations"
    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Add",))
    """Add nodes; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when no such pair is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.decomposing import fuse_gemms

        count = fuse_gemms(edited, edited.select_nodes(self.select, self.allow_empty))
        if not count and not self.allow_empty:
            raise RequestError(
                "no selected Add adds a constant row to a MatMul of two matrices; `allow_empty: true` accepts that"
            )
        return f"{count} MatMul + Add fused into Gemm"
