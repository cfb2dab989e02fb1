"""Add a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import NodeOperation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class AddNode(NodeOperation):
    """Add a node; operations that follow can connect its outputs or make them outputs of the model.

        add_node: {op_type: Clip, inputs: [logits, "", six], outputs: [capped], name: cap}
        add_node: {op_type: Fused, domain: com.acme, inputs: [x], outputs: [y], types: {y: "float32[1, 64]"}}

    The operator's inputs and attributes are checked. TensorRT looks for a plugin where ONNX has no operator: a name in
    `_TRT`, or an attribute `plugin_version`, marks a node as one. Names that are not given are generated: unique C90
    identifiers, the same in every run.
    """

    heading = "nodes"
    keeps_outputs = True

    inputs: tuple[str, ...] = ()
    """Names of the input tensors, in order; `""` omits an optional input."""
    outputs: tuple[str, ...] = ()
    """Names of the output tensors; generated for required outputs that are not given."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the node."""
    scope: str = ""
    """The graph to add it to: `If_0/then_branch` is a subgraph, `domain::Name` a local function."""
    types: dict[str, str] = Field(default={})
    """Output -> `float32[1, 3, H, ?]`, for custom operators."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import NewNode, NodeMaker

        new = NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, self.outputs, self.name, self.types)
        node = NodeMaker(edited).add(new, edited.graph(self.scope))
        outputs = ", ".join(value.name for value in node.outputs if value.name)
        return f"node {node.name} added" + (f" with outputs {outputs}" if outputs else "")
