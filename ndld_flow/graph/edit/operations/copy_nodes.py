"""Copy nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from onnx_ir import Value

    from ndld_flow.graph.edit.edited_model import EditedModel


class CopyNodes(Operation):
    """Copy nodes within their graphs. Copies are connected to each other like the originals and share their inputs.

        copy_nodes: {select: {between: [stem, head]}, prefix: twin_}

    Outputs of the copies are unused until they are connected. Weights are shared.
    """

    heading = "nodes"
    keeps_outputs = True

    select: Select
    """Nodes to copy."""
    prefix: str = Field(default="copy_", min_length=1)
    """Prefix for the names of the copies and their outputs; names that are already used get a number."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import names_around
        from ndld_flow.graph.edit.node_groups import Renaming, copy_nodes, outermost

        nodes = outermost(edited.select_nodes(self.select, self.allow_empty))
        read: dict[Value, Value | None] = {}
        for graph in dict.fromkeys(node.graph for node in nodes):
            assert graph is not None
            copies = copy_nodes([node for node in nodes if node.graph is graph], read)
            Renaming(*names_around(edited.model, graph), prefix=self.prefix).rename(copies.nodes)
            read |= copies.values
            graph.extend(copies.nodes)
        return f"{counted(len(nodes), 'node')} copied"
