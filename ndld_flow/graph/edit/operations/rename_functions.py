"""Rename local functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RenameFunctions(Operation):
    """Rename local functions and their domains; their calls follow.

    rename_functions: {select: "pkg.torch::*", to: "model::{name}"}
    """

    heading = "local functions"
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
