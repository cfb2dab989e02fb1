"""Give local functions another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameFunctions(Operation):
    """Give local functions another domain or name; their calls follow.

    rename_functions: {functions: "pkg.torch::*", to: "model::{name}"}
    """

    about = "local functions"
    keeps_outputs = True

    functions: Patterns
    """Which functions, by `domain::Name` or by the name alone."""
    to: str
    """The new `domain::Name`; `{domain}` and `{name}` are the old ones."""
    allow_empty: bool = False
    """Let it pass when there is no such function."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.function_calls import rename_functions
        from ndld_flow.graph.edit.function_names import find_functions

        functions = find_functions(edited.model, self.functions, self.allow_empty)
        calls = rename_functions(edited, functions, self.to)
        return f"{len(functions)} functions renamed, which are called {calls} times"
