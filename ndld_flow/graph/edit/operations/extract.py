"""Extract a part of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select, Words

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class Extract(Operation):
    """Keep only a part of the model with its weights and functions: what outputs depend on, or selected nodes.

        extract: {outputs: [features], inputs: [images]}

    With `select`, tensors that the nodes read from other nodes become inputs, and tensors that other nodes read from
    them become outputs. Constants are included:

        extract: {select: {between: [backbone_first, backbone_last]}}

    Two steps that `extract` from the same source split a model; `append_model` joins the halves again. `cut` keeps
    what `extract` leaves out.
    """

    heading = "extracting and combining"

    outputs: Words = ()
    """Tensors that become the outputs."""
    inputs: Words = ()
    """Tensors that become the inputs; by default the part extends back to the inputs of the model."""
    scope: str = ""
    """With `outputs`: their graph, such as `If_0/then_branch`."""
    select: Select | None = None
    """Nodes of the part, instead of `outputs`."""
    types: dict[str, str] = Field(default={})
    """Tensor -> `float32[1, 3, H, ?]`, for new inputs and outputs whose type or shape is unknown."""

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if bool(self.outputs) == (self.select is not None):
            raise ValueError("give the part with `outputs` (and `inputs`), or with `select`")
        if self.select is not None and (self.inputs or self.scope):
            raise ValueError("`inputs` and `scope` belong to `outputs`; `select` has a `scope` of its own")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.extracting import keep_only, part_between, part_of_nodes
        from ndld_flow.graph.edit.interface import show_interface

        if self.select is not None:
            part = part_of_nodes(edited, edited.select_nodes(self.select))
        else:
            part = part_between(edited, self.scope, self.inputs, self.outputs)
        keep_only(edited, part, self.types)
        return f"{counted(len(part.nodes), 'node')} kept: {show_interface(edited.model)}"
