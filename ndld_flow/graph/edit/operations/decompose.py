"""Operators written out in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Decompose(Operation):
    """Replace nodes by what ONNX itself defines their operator as, for runtimes that do not have it.

    LayerNormalization, Gelu, HardSwish, GroupNormalization, Attention, Clip and many more have such a definition; which
    depends on the model's opset, and a wrong one is told with the list. Results are the same up to the last bits (1e-5
    of the largest for fp32): a kernel of its own adds in another order.

        decompose: {select: {op_type: [LayerNormalization, Gelu]}}
    """

    about = "named surgeries"
    keeps_outputs = True

    select: Select
    """Which nodes."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.function_bodies import decompose_nodes

        nodes = edited.select_nodes(self.select, self.allow_empty)
        more = decompose_nodes(edited, nodes)
        return f"{len(nodes)} nodes written out in {len(nodes) + more}"
