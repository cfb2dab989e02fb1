"""Make a local function of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeFunction(Operation):
    """Make a local function of nodes and call it in their place, and wherever the same block stands again.

        make_function: {function: "model::Layer", repeated: true}

    What the nodes read becomes an input and what others read of them an output, in the order of the nodes. Repeats have
    the same operators and wiring; weights that differ are inputs anyway, attributes that differ become attributes of
    the function, with the first repeat's value as the default. `inline_functions` undoes it.
    """

    about = "local functions"
    keeps_outputs = True

    function: str
    """The new function, as `domain::Name`."""
    select: Select | None = None
    """Which nodes, all of one graph; what stands in their subgraphs comes with them."""
    repeated: bool = False
    """Instead of a selection: the largest block that stands several times, such as a transformer's layer."""
    min_nodes: int = Field(default=4, ge=2)
    """For `repeated`: how many nodes the block has at least."""
    repeats: bool = True
    """With a selection: call the function wherever the same block stands again, in subgraphs and functions too."""
    inside: bool = False
    """Put constants that are the same in all repeats into the function; those in external data stay inputs."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.select is None) != self.repeated:
            raise ValueError("say either which nodes by `select`, or `repeated: true` for the largest repeated block")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_making import make_function, make_repeated_function
        from ndld_flow.graph.edit.function_names import new_function_name

        name = new_function_name(edited.model, self.function)
        if self.select is None:
            found = make_repeated_function(edited, name, self.min_nodes, self.inside)
        else:
            nodes = edited.select_nodes(self.select, self.allow_empty)
            if not nodes:
                return "nothing selected"
            found = make_function(edited, nodes, name, self.repeats, self.inside)
        return f"{name} made of {len(found[0].nodes)} nodes and called {len(found)} times"
