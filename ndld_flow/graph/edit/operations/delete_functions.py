"""Take local functions out of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class DeleteFunctions(Operation):
    """Take local functions out of the model; their calls can stay as custom operators, for a backend that has them.

    delete_functions: {functions: "model::*", leave_calls: true}
    """

    about = "local functions"

    functions: Patterns
    """Which functions, by `domain::Name` or by the name alone."""
    leave_calls: bool = False
    """Let calls stay: they are custom operators then, which ONNX Runtime runs only with a library that has them."""
    allow_empty: bool = False
    """Let it pass when there is no such function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_calls import delete_functions
        from ndld_flow.graph.edit.function_names import find_functions

        functions = find_functions(edited.model, self.functions, self.allow_empty)
        left = delete_functions(edited, functions, self.leave_calls)
        if left:
            edited.note(f"{left} calls of deleted functions are custom operators now")
        return f"{len(functions)} functions deleted"
