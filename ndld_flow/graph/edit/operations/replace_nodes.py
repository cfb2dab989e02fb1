"""Replace nodes by one node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import NodeOperation
from ndld_flow.graph.edit.settings import NewName, Select, TensorValue

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


def _from_file(path: str) -> TensorValue:
    return TensorValue(file=Path(path))


Weight = TensorValue | Annotated[str, AfterValidator(_from_file)]


class ReplaceNodes(NodeOperation):
    """Replace the selected nodes by one node, such as a plugin, with attributes and weights of its own.

        replace_nodes: {select: {between: [norm_first, norm_last]}, op_type: MyNorm, domain: com.acme,
                        attributes: {epsilon: 1.0e-5}, weights: {gamma: gamma.npy}}
        replace_nodes: {select: {after: [boxes, scores]}, op_type: MyNms, domain: com.acme, inputs: [boxes, scores],
                        outputs: [detections], types: {detections: "float32[1, 100, 6]"}}

    Outputs that other nodes or the model's user read keep their names, types and shapes. Nodes, constants and weights
    that nothing needs any longer are removed.
    """

    heading = "nodes"

    select: Select
    """Nodes of one graph; their subgraphs are included."""
    inputs: tuple[str, ...] | None = None
    """Names of the input tensors, in order: tensors of the graph, or names in `weights`; `""` omits an optional input.
    By default the tensors that the nodes read from other nodes and inputs of the graph, without constants."""
    outputs: tuple[NewName, ...] | None = None
    """Names of the output tensors, in order: outputs of the nodes, or new names, which need `types`. By default the
    tensors that others read. The model's outputs that are left out are replaced by the new names."""
    weights: dict[NewName, Weight] = Field(default={})
    """Name of a new initializer -> a `.npy` file, or `{value: ..., dtype: ...}`; read after the `inputs`, unless these
    name it."""
    types: dict[str, str] = Field(default={})
    """Output -> `float32[1, 3, H, ?]`, where it differs from that of the replaced nodes."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the new node."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_replacement import Replacement, replace_nodes
        from ndld_flow.models.input_shapes import show_tensors

        nodes = edited.select_nodes(self.select, self.allow_empty)
        if not nodes:
            return "nothing selected"
        weights = {name: weight for name, weight in self.weights.items() if isinstance(weight, TensorValue)}
        new = Replacement(
            self.op_type, self.own_domain, self.attributes, self.inputs, self.outputs, weights, self.types, self.name
        )
        node = replace_nodes(edited, nodes, new)
        replaced = f"{counted(len(nodes), 'node')} replaced by {node.name} ({self.op_type})"
        inputs = show_tensors(value for value in node.inputs if value is not None)
        return f"{replaced}: {inputs} -> {show_tensors(node.outputs)}"
