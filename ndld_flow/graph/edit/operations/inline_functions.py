"""Inline local functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class InlineFunctions(Operation):
    """Inline local functions at their calls, also in subgraphs and in other functions.

    inline_functions: {select: "model::*"}
    """

    heading = "local functions"
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
