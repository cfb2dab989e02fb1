"""Add a node that calls a local function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class CallFunction(Operation):
    """Add a node that calls a local function.

    call_function: {function: "model::Layer", inputs: [hidden, weight], outputs: [hidden_2], attributes: {axis: -1}}
    """

    heading = "local functions"
    keeps_outputs = True

    function: str
    """`domain::Name`, or the name alone."""
    inputs: tuple[str, ...]
    """Names of the input tensors, in the function's order; `""` omits an optional input."""
    outputs: tuple[str, ...] = ()
    """Names of the output tensors; generated when not given."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Values of the function's attributes; attributes that are omitted have their defaults."""
    name: str = ""
    """Name of the node; generated when not given."""
    scope: str = ""
    """The graph to add it to: `""` is the main graph, `If_0/then_branch` a subgraph, `domain::Name` a function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import Call, add_call, find_function

        call = Call(self.inputs, self.outputs, self.attributes, self.name)
        node = add_call(edited, find_function(edited.model, self.function), call, self.scope)
        return f"{node.name} calls {self.function}"
