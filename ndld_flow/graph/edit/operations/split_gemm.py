"""Gemm as MatMul and Add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class SplitGemm(Operation):
    """Write Gemm as MatMul and Add.

    Constant matrices are transposed at once, others by a Transpose; alpha and beta other than 1 become a Mul. Results
    are the same up to the last bits (1e-6 of the largest for fp32): kernels add in another order.

        split_gemm: {select: {name: "head_*"}}
    """

    about = "named surgeries"
    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Gemm",))
    """Which nodes; what is no Gemm is passed over."""
    allow_empty: bool = False
    """Let it pass when there is no Gemm."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.gemm import split_gemms

        count = split_gemms(edited, edited.select_nodes(self.select, self.allow_empty))
        if not count and not self.allow_empty:
            raise RequestError("there is no Gemm among the selected nodes; `allow_empty: true` lets it pass")
        return f"{count} Gemm split into MatMul and Add"
