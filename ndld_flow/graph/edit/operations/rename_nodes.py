"""Rename nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NameTemplate, NewName, Select, fill_template, groups_of, stem_of

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameNodes(Operation):
    """Rename nodes. Names are unique among a graph and its subgraphs.

        rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        rename_nodes: {select: "/layers[.]([0-9]+)[.](.*)/", to: "block{1}_{2}"}
        rename_nodes: {names: {Conv_0: stem, Gemm_12: head}}

    If several nodes would get the same name, all but the first get a number: `conv`, `conv_2`, `conv_3`.
    """

    heading = "nodes"
    keeps_outputs = True

    select: Select | None = None
    """Nodes to rename; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` its part after the last `/` or `.`, `{op_type}` the operator,
    `{output}` the first output, `{index}` the number of the selected node from 0 (`{index:03}` with leading zeros),
    `{1}` the first group of the regular expression in `select`."""
    names: dict[str, NewName] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be swapped."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if (self.select is None) != (self.to is None) or (self.select is None) == (not self.names):
            raise ValueError("give either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import nodes_to_rename, rename_nodes

        wishes = nodes_to_rename(edited.model, self.names)
        if self.select is not None and self.to is not None:
            for index, node in enumerate(edited.select_nodes(self.select, self.allow_empty)):
                output = next((value.name for value in node.outputs if value.name), "")
                name = node.name or output
                facts = {"name": name, "stem": stem_of(name), "op_type": node.op_type, "output": output}
                groups = groups_of(self.select.name, node.name or "")
                wishes[node] = fill_template(self.to, {**facts, **groups, "index": str(index)})
        return f"{counted(rename_nodes(edited.model, wishes), 'node')} renamed"
