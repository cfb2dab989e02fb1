"""Insert a node into an edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.new_node import MakesNode
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.node_adding import NewNode


class InsertNode(MakesNode):
    """Insert a node between a tensor and those who read it.

        insert_node: {op_type: Relu, after: features}
        insert_node: {op_type: Mul, inputs: ["{tensor}", scale], after: features, readers: {op_type: Conv}}
        insert_node: {op_type: Cast, attributes: {to: float32}, before: softmax, input: 0}

    After a tensor it stands before all readers or some; a graph output keeps its name. Before a node it stands at one
    input of that node only.
    """

    about = "nodes"

    after: str | None = None
    """A tensor."""
    readers: Select | None = None
    """With `after`: only before these; without it before all, and before the graph's output where the tensor is one."""
    before: Select | None = None
    """Nodes; each gets one of its own."""
    input: int | str = 0
    """With `before`: which input, by number or as the operator calls it."""
    inputs: tuple[str, ...] = ("{tensor}",)
    """What the new node reads, in order; `{tensor}` stands for the tensor that goes through it."""
    output: str | None = Field(default=None, min_length=1)
    """With `after`: name of what it makes."""
    name: str | None = Field(default=None, min_length=1)
    """With `after`: its name."""
    scope: str = ""
    """With `after`: the graph the tensor stands in."""

    @model_validator(mode="after")
    def _check_one_place(self) -> Self:
        if (self.after is None) == (self.before is None):
            raise ValueError("say either `after` or `before`")
        stray = ("readers", "output", "name", "scope") if self.after is None else ("input",)
        for setting in stray:
            if getattr(self, setting) != type(self).model_fields[setting].default:
                raise ValueError(f"`{setting}` goes with `{'after' if self.after is None else 'before'}`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.node_adding import NodeMaker

        maker = NodeMaker(edited)
        if self.before is not None:
            readers = edited.select_nodes(self.before)
            for reader in readers:
                maker.insert_before(self._new_node(), reader, self.input)
            return f"{self.op_type} inserted before {len(readers)} nodes"
        chosen = None if self.readers is None else set(edited.select_nodes(self.readers))
        tensor = edited.value(self.after or "", self.scope)
        node, count = maker.insert_after(self._new_node(), tensor, chosen)
        return f"node {node.name} inserted after {self.after}, before {count} readers"

    def _new_node(self) -> NewNode:
        from ndld_flow.graph.edit.node_adding import NewNode

        outputs = () if self.output is None else (self.output,)
        return NewNode(self.op_type, self.own_domain, self.attributes, self.inputs, outputs, self.name)
