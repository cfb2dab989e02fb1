"""Decompose nodes into simpler operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Decompose(Operation):
    """Replace nodes by the simpler operators that define them, for runtimes that do not support them.

    Gemm becomes MatMul and Add: constant matrices are transposed at once, others by a Transpose; alpha and beta other
    than 1 become a Mul. All other nodes are replaced by the function body of ONNX's specification, which
    LayerNormalization, Gelu, HardSwish, GroupNormalization, Attention, Clip and many more have. The set depends on the
    model's opset; an operator without a definition is refused with the list. Results agree up to rounding (1e-5 of the
    largest for fp32), because kernels add in another order.

        decompose: {select: {op_type: [LayerNormalization, Gelu]}}
    """

    heading = "transformations"
    keeps_outputs = True

    select: Select
    """Nodes to decompose."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.decomposing import decompose_nodes, is_gemm, split_gemms

        nodes = edited.select_nodes(self.select, self.allow_empty)
        gemms = [node for node in nodes if is_gemm(node)]
        more = split_gemms(edited, gemms)
        more += decompose_nodes(edited, [node for node in nodes if not is_gemm(node)])
        return f"{counted(len(nodes), 'node')} decomposed into {len(nodes) + more}"
