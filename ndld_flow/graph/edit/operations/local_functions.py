"""Operations on local functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AllowEmpty, Patterns, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeFunction(Operation):
    """Turn nodes into a local function, and call it in place of the nodes and of equal blocks elsewhere.

        make_function: {function: "model::Layer", select: {between: [layer0_in, layer0_out]}}

    Tensors that the nodes read from other nodes become inputs, and tensors that other nodes read from them become
    outputs, in the order of the nodes. Equal blocks have the same operators and connections; weights that differ are
    inputs anyway, attributes that differ become attributes of the function, with the first block's values as defaults.
    `inline_functions` reverses it.
    """

    keeps_outputs = True

    function: str
    """Name of the function, as `domain::Name`."""
    select: Select
    """Nodes of one graph; their subgraphs are included."""
    repeats: bool = True
    """Call the function in place of all equal blocks, also in subgraphs and functions."""
    inside: bool = False
    """Move constants that are the same in all blocks into the function; those in external data stay inputs."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_making import make_function
        from ndld_flow.graph.edit.functions import new_function_name

        name = new_function_name(edited.model, self.function)
        nodes = edited.select_nodes(self.select, self.allow_empty)
        if not nodes:
            return "nothing selected"
        blocks = make_function(edited, nodes, name, self.repeats, self.inside)
        return f"{name} made of {len(blocks[0].nodes)} nodes and called {counted(len(blocks), 'time')}"


class CallFunction(Operation):
    """Add a node that calls a local function.

    call_function: {function: "model::Layer", inputs: [hidden, weight], outputs: [hidden_2], attributes: {axis: -1}}
    """

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


class InlineFunctions(Operation):
    """Inline local functions at their calls, also in subgraphs and in other functions.

    inline_functions: {select: "model::*"}
    """

    keeps_outputs = True

    select: Patterns = ("*",)
    """Functions to inline, by `domain::Name` or by the name alone."""
    keep_unused: bool = False
    """Keep the functions, which are then unused."""
    allow_empty: bool = False
    """Succeed when a pattern of `select` matches no function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import find_functions, inline_functions

        functions = find_functions(edited.model, self.select, self.allow_empty or self.select == ("*",))
        if not functions:
            edited.note("no local function to inline")
            return "nothing to do"
        calls = inline_functions(edited, functions, keep=self.keep_unused)
        return f"{counted(len(functions), 'function')} inlined at {counted(calls, 'call')}"


class RenameFunctions(Operation):
    """Rename local functions and their domains; their calls follow.

    rename_functions: {select: "pkg.torch::*", to: "model::{name}"}
    """

    keeps_outputs = True

    select: Patterns
    """Functions to rename, by `domain::Name` or by the name alone."""
    to: str
    """The new `domain::Name`; `{domain}` and `{name}` are the old ones."""
    allow_empty: bool = False
    """Succeed when there is no such function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import find_functions, rename_functions

        functions = find_functions(edited.model, self.select, self.allow_empty)
        calls = rename_functions(edited, functions, self.to)
        return f"{counted(len(functions), 'function')} with {counted(calls, 'call')} renamed"


class RemoveFunctions(Operation):
    """Remove local functions; their calls can stay as custom operators, for a runtime that implements them.

    remove_functions: {select: "model::*", leave_calls: true}
    """

    select: Patterns
    """Functions to remove, by `domain::Name` or by the name alone."""
    leave_calls: bool = False
    """Keep the calls, as custom operators; ONNX Runtime runs those only with a library that implements them."""
    allow_empty: bool = False
    """Succeed when there is no such function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import find_functions, remove_functions

        functions = find_functions(edited.model, self.select, self.allow_empty)
        left = remove_functions(edited, functions, self.leave_calls)
        if left:
            edited.note(f"{left} calls of removed functions are now custom operators")
        return f"{counted(len(functions), 'function')} removed"


class SetFunctionAttributes(Operation):
    """Set attributes of a local function and their defaults, and let nodes in it refer to them.

    set_function_attributes:
      function: "model::Layer"
      attributes: {slope: 0.1}
      references: {LeakyRelu_3: {alpha: slope}}
    """

    function: str
    """`domain::Name`, or the name alone."""
    attributes: dict[str, JsonValue] = Field(default={})
    """Attribute -> default; `null` means no default: nodes that refer to it lack the attribute unless the call sets
    it."""
    references: dict[str, dict[str, str]] = Field(default={})
    """Node in the function -> its attribute -> the function's attribute that it refers to. A function attribute that is
    not in `attributes` gets the node's value as its default."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not (self.attributes or self.references):
            raise ValueError("give `attributes`, `references`, or both")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.functions import find_function, set_attributes

        function = find_function(edited.model, self.function)
        references = set_attributes(edited, function, self.attributes, self.references)
        return f"{self.function}: {len(self.attributes)} attributes set, {references} references added"
