"""Rename tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NameTemplate, NewName, Patterns, fill_template, groups_of, stem_of

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameTensors(Operation):
    """Rename tensors: inputs and outputs of the model, initializers, and outputs of nodes.

        rename_tensors: {names: {input.1: image, "495": logits}}
        rename_tensors: {select: "/^onnx::(.*)/", to: "t_{1}", keep_io: true}

    Names are unique among a graph and its subgraphs: if several tensors would get the same name, all but the first get
    a number.
    """

    heading = "connections"
    keeps_outputs = True

    select: Patterns = ()
    """Tensors to rename, by name; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` its part after the last `/` or `.`, `{op_type}` the operator that
    produces it (`input` or `initializer` if none does), `{index}` the number of the selected tensor from 0
    (`{index:03}` with leading zeros), `{1}` the first group of the regular expression in `select`."""
    names: dict[str, NewName] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be swapped; a new name that is already used is
    refused. A name that several graphs have means the tensor of the main graph."""
    scope: str | None = None
    """With `select`: only in this graph; `""` is the main graph, `If_0/then_branch` a subgraph."""
    keep_io: bool = False
    """Keep the names of the model's inputs and outputs."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.select) != (self.to is not None) or bool(self.select) == bool(self.names):
            raise ValueError("give either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.names import rename_values, values_to_rename

        wishes = values_to_rename(edited.model, self.names)
        chosen = edited.select_values(self.select, self.allow_empty, self.scope)
        if self.keep_io:
            edges = {*edited.model.graph.inputs, *edited.model.graph.outputs}
            chosen = [value for value in chosen if value not in edges]
            wishes = {value: name for value, name in wishes.items() if value not in edges}
        for index, value in enumerate(chosen):
            name, producer = value.name or "", value.producer()
            source = producer.op_type if producer is not None else "input" if value.is_graph_input() else "initializer"
            facts = {"name": name, "stem": stem_of(name), "op_type": source, "output": name}
            wishes[value] = fill_template(self.to or "", {**facts, **groups_of(self.select, name), "index": str(index)})
        return f"{counted(rename_values(edited.model, wishes), 'tensor')} renamed"
