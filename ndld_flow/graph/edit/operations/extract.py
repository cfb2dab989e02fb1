"""Make a part of the model a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select, Words

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Extract(Operation):
    """Keep only a part: what tensors depend on, or selected nodes; with its weights and functions.

        extract: {outputs: [features], inputs: [images]}

    Or by nodes; what they read of others becomes inputs, what others read of them outputs. Constants come along:

        extract: {select: {between: [backbone_first, backbone_last]}}

    Two steps with `extract` from one source split a model; `append_model` puts the halves together again. `cut` keeps
    what `extract` leaves behind.
    """

    about = "parts and other models"

    outputs: Words = ()
    """Tensors that the part gives."""
    inputs: Words = ()
    """Tensors that the part takes; without, it goes back as far as there is anything."""
    scope: str = ""
    """For `outputs`: the graph they are in, such as `If_0/then_branch`."""
    select: Select | None = None
    """Nodes that are the part, instead of `outputs`."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose dtype or shape the model does not tell."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.outputs) == (self.select is not None):
            raise ValueError("say the part by `outputs` (and `inputs`), or by `select`")
        if self.select is not None and (self.inputs or self.scope):
            raise ValueError("`inputs` and `scope` belong to `outputs`; `select` has a `scope` of its own")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, part_between, part_of_nodes

        if self.select is not None:
            part = part_of_nodes(edited, edited.select_nodes(self.select))
        else:
            part = part_between(edited, self.scope, self.inputs, self.outputs)
        keep_only(edited, part, self.types)
        return f"{len(part.nodes)} nodes kept"
