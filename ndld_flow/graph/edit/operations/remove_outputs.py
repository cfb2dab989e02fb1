"""Remove outputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class RemoveOutputs(Operation):
    """Remove outputs, and the nodes that only they depend on.

    remove_outputs: {select: aux_*}
    """

    heading = "inputs and outputs"
    keeps_outputs = True

    select: Patterns
    """Outputs to remove, by names, globs or `/regex/`."""
    prune: bool = True
    """Remove nodes and weights that no output depends on any more. Those that were unused before stay."""
    allow_empty: bool = False
    """Succeed when no name matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.interface import pick
        from ndld_flow.graph.edit.wiring import is_used, prune_values
        from ndld_flow.models.input_shapes import show_tensors

        graph = edited.model.graph
        values = pick(graph.outputs, self.select, "output", self.allow_empty)
        kept = [value for value in graph.outputs if value not in values]
        if values and not kept:
            raise RequestError("no output would be left; add others first with `add_outputs`")
        inputs = [value for value in graph.inputs if value.uses()]
        graph.outputs[:] = kept
        removed = prune_values(values) if self.prune else []
        idle = [value.name for value in inputs if not is_used(value)]
        if idle:
            edited.note(f"nothing reads {', '.join(map(short_name, filter(None, idle)))} any more; see `remove_inputs`")
        return f"outputs removed: {show_tensors(values)}; {counted(len(removed), 'node')} with them"
