"""Add a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.new_node import MakesNode

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddNode(MakesNode):
    """Add a node; what it makes can be connected, or made an output, by operations that follow.

        add_node: {op_type: Clip, inputs: [logits, "", six], outputs: [capped], name: cap}
        add_node: {op_type: Fused, domain: com.acme, inputs: [x], outputs: [y], types: {y: "float32[1, 64]"}}

    The operator's inputs and attributes are checked. Names that are not given are made up: C90 identifiers that nothing
    else in the model has, the same each time.
    """

    about = "nodes"
    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Names of the tensors it reads, in order; `""` leaves an optional one out."""
    outputs: tuple[str, ...] = ()
    """Names of the tensors it makes; made up where the operator must make more."""
    name: str | None = Field(default=None, min_length=1)
    """Its name."""
    scope: str = ""
    """The graph it stands in: `If_0/then_branch` is a subgraph, `domain::Name` a local function."""
    types: dict[str, str] = Field(default={})
    """Output -> `float32[1, 3, H, ?]`, for custom operators."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_adding import NewNode, NodeMaker

        new = NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, self.outputs, self.name, self.types)
        node = NodeMaker(edited).add(new, edited.graph(self.scope))
        made = ", ".join(value.name for value in node.outputs if value.name)
        return f"node {node.name} added" + (f"; it makes {made}" if made else "")
