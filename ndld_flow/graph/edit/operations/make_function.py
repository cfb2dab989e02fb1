"""Turn nodes into a local function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeFunction(Operation):
    """Turn nodes into a local function, and call it in place of the nodes and of equal blocks elsewhere.

        make_function: {function: "model::Layer", repeated: true}

    Tensors that the nodes read from other nodes become inputs, and tensors that other nodes read from them become
    outputs, in the order of the nodes. Equal blocks have the same operators and connections; weights that differ are
    inputs anyway, attributes that differ become attributes of the function, with the first block's values as defaults.
    `inline_functions` reverses it.
    """

    heading = "local functions"
    keeps_outputs = True

    function: str
    """Name of the function, as `domain::Name`."""
    select: Select | None = None
    """Nodes of one graph; their subgraphs are included."""
    repeated: bool = False
    """Instead of `select`: the largest block that occurs several times, such as a transformer's layer."""
    min_nodes: int = Field(default=4, ge=2)
    """With `repeated`: the minimum number of nodes of the block."""
    repeats: bool = True
    """With `select`: call the function in place of all equal blocks, also in subgraphs and functions."""
    inside: bool = False
    """Move constants that are the same in all blocks into the function; those in external data stay inputs."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.select is None) != self.repeated:
            raise ValueError("give either nodes with `select`, or `repeated: true` for the largest repeated block")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_making import make_function, make_repeated_function
        from ndld_flow.graph.edit.functions import new_function_name

        name = new_function_name(edited.model, self.function)
        if self.select is None:
            blocks = make_repeated_function(edited, name, self.min_nodes, self.inside)
        else:
            nodes = edited.select_nodes(self.select, self.allow_empty)
            if not nodes:
                return "nothing selected"
            blocks = make_function(edited, nodes, name, self.repeats, self.inside)
        return f"{name} made of {len(blocks[0].nodes)} nodes and called {counted(len(blocks), 'time')}"
