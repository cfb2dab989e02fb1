"""Put local functions in the places they are called from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InlineFunctions(Operation):
    """Put local functions in the places they are called from, in subgraphs and other functions too.

    inline_functions: {functions: "model::*"}
    """

    about = "local functions"
    keeps_outputs = True

    functions: Patterns = ("*",)
    """Which functions, by `domain::Name` or by the name alone."""
    keep_unused: bool = False
    """Keep the functions, which nobody calls then."""
    allow_empty: bool = False
    """Let it pass when the model has no local functions."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_inlining import inline_functions
        from ndld_flow.graph.edit.function_names import find_functions

        functions = find_functions(edited.model, self.functions, self.allow_empty)
        calls = inline_functions(edited, functions, keep=self.keep_unused)
        return f"{len(functions)} functions inlined in {calls} places"
