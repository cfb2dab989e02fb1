"""Insert a node between a tensor and its readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import NodeOperation
from ndld_flow.graph.edit.settings import Anchors, Select, as_names

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.nodes import NewNode


class InsertNode(NodeOperation):
    """Insert a node between a tensor and its readers.

        insert_node: {op_type: Relu, after: features}
        insert_node: {op_type: Mul, inputs: ["{tensor}", scale], after: features, readers: {op_type: Conv}}
        insert_node: {op_type: Cast, attributes: {to: float32}, before: softmax, input: 0}

    `after` a tensor, the node is inserted before all of its readers or before some; a graph output keeps its name.
    After several tensors, one node is inserted for each.
    `before` a node, it is inserted at one input of that node only.
    """

    heading = "nodes"

    after: Anchors | None = None
    """The tensor to insert the node after, or several tensors."""
    readers: Select | None = None
    """With `after`: only these readers; by default all, and the graph output if the tensor is one."""
    before: Select | None = None
    """Nodes to insert a node before, one for each."""
    input: int | str = 0
    """With `before`: the input, by index or by the operator's name for it."""
    inputs: tuple[str, ...] = ("{tensor}",)
    """Inputs of the new node, in order; `{tensor}` is the tensor that it is inserted at."""
    output: str | None = Field(default=None, min_length=1)
    """With `after` one tensor: name of the output."""
    name: str | None = Field(default=None, min_length=1)
    """With `after` one tensor: name of the node."""
    scope: str = ""
    """With `after`: the graph of the tensor."""

    @model_validator(mode="after")
    def _check_one_place(self) -> Self:
        if (self.after is None) == (self.before is None):
            raise ValueError("give either `after` or `before`")
        stray = ("readers", "output", "name", "scope") if self.after is None else ("input",)
        for setting in stray:
            if getattr(self, setting) != type(self).model_fields[setting].default:
                raise ValueError(f"`{setting}` goes with `{'after' if self.after is None else 'before'}`")
        if isinstance(self.after, tuple) and len(self.after) > 1 and (self.name or self.output):
            raise ValueError("`name` and `output` go with one tensor in `after`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.nodes import NodeMaker

        maker = NodeMaker(edited)
        if self.before is not None:
            readers = edited.select_nodes(self.before)
            for reader in readers:
                maker.insert_before(self._new_node(), reader, self.input)
            return f"{self.op_type} inserted before {counted(len(readers), 'node')}"
        chosen = None if self.readers is None else set(edited.select_nodes(self.readers))
        tensors = [edited.value(name, self.scope) for name in as_names(self.after or "")]
        inserted = [maker.insert_after(self._new_node(), tensor, chosen) for tensor in dict.fromkeys(tensors)]
        nodes, counts = zip(*inserted, strict=True)
        names = ", ".join(node.name for node in nodes)
        return f"node {names} inserted after {', '.join(as_names(self.after or ''))}, before {sum(counts)} readers"

    def _new_node(self) -> NewNode:
        from ndld_flow.graph.edit.nodes import NewNode

        outputs = () if self.output is None else (self.output,)
        return NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, outputs, self.name)
