"""Rename tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.name_template import NameTemplate, fill, groups_of, stem_of
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameTensors(Operation):
    """Rename tensors: inputs, outputs, initializers and what nodes make.

        rename_tensors: {names: {input.1: image, "495": logits}}
        rename_tensors: {select: "/^onnx::(.*)/", to: "t_{1}", keep_io: true}

    No two of a graph and its subgraphs get one name: where several would, all but the first get a number.
    """

    about = "wires"
    keeps_outputs = True

    select: Patterns = ()
    """Their names; with `to`."""
    to: NameTemplate | None = None
    """The new name. `{name}` is the old one, `{stem}` what is after its last `/` or `.`, `{op_type}` the operator that
    makes it (`input` or `initializer` where none does), `{index}` counts what was selected from 0 (`{index:03}` with
    leading zeros), `{1}` the first group of the regular expression in `select`."""
    names: dict[str, Annotated[str, Field(min_length=1)]] = Field(default={})
    """Old name -> new name, instead of `select` and `to`. Names may be exchanged."""
    scope: str | None = None
    """Only in the graph at this address; `""` is the main graph, `If_0/then_branch` a subgraph. With `select`."""
    keep_io: bool = False
    """Leave the model's inputs and outputs as they are."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.select) != (self.to is not None) or bool(self.select) == bool(self.names):
            raise ValueError("say either `select` and `to`, or `names`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.renaming import rename_values, values_to_rename

        wishes = values_to_rename(edited.model, self.names)
        chosen = edited.select_values(self.select, self.allow_empty, self.scope)
        if self.keep_io:
            edges = {*edited.model.graph.inputs, *edited.model.graph.outputs}
            chosen = [value for value in chosen if value not in edges]
            wishes = {value: name for value, name in wishes.items() if value not in edges}
        for index, value in enumerate(chosen):
            name, maker = value.name or "", value.producer()
            made_by = maker.op_type if maker is not None else "input" if value.is_graph_input() else "initializer"
            facts = {"name": name, "stem": stem_of(name), "op_type": made_by, "output": name}
            wishes[value] = fill(self.to or "", {**facts, **groups_of(self.select, name), "index": str(index)})
        return f"{rename_values(edited.model, wishes)} tensors renamed"
