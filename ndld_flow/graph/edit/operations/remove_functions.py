"""Remove local functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveFunctions(Operation):
    """Remove local functions; their calls can stay as custom operators, for a runtime that implements them.

    remove_functions: {select: "model::*", leave_calls: true}
    """

    heading = "local functions"

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
