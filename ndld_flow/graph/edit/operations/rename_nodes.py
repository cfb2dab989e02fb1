"""Rename nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.name_template import NameTemplate, fill, groups_of, stem_of
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameNodes(Operation):
    """Rename nodes; no two of a graph and its subgraphs get one name.

        rename_nodes: {select: {op_type: Conv}, to: "conv_{index}"}
        rename_nodes: {select: "/layers[.]([0-9]+)[.](.*)/", to: "block{1}_{2}"}
        rename_nodes: {names: {Conv_0: stem, Gemm_12: head}}

    Where several would get one name, all but the first get a number: `conv`, `conv_2`, `conv_3`.
    """

    about = "nodes"
    keeps_outputs = True

    select: Select | None = None
    """Which nodes; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` what is after its last `/` or `.`, `{op_type}` the operator,
    `{output}` the first tensor it makes, `{index}` counts what was selected from 0 (`{index:03}` with leading zeros),
    `{1}` the first group of the regular expression in `select`."""
    names: dict[str, Annotated[str, Field(min_length=1)]] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be exchanged."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if (self.select is None) != (self.to is None) or (self.select is None) == (not self.names):
            raise ValueError("say either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.renaming import nodes_to_rename, rename_nodes

        wishes = nodes_to_rename(edited.model, self.names)
        if self.select is not None and self.to is not None:
            for index, node in enumerate(edited.select_nodes(self.select, self.allow_empty)):
                output = next((value.name for value in node.outputs if value.name), "")
                name = node.name or output
                facts = {"name": name, "stem": stem_of(name), "op_type": node.op_type, "output": output}
                groups = groups_of(self.select.name, node.name or "")
                wishes[node] = fill(self.to, {**facts, **groups, "index": str(index)})
        return f"{rename_nodes(edited.model, wishes)} nodes renamed"
