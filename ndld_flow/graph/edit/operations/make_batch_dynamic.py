"""A free batch for a model that was exported for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeBatchDynamic(Operation):
    """Let a model that was exported for a fixed batch take any.

    Inputs and outputs get a named dimension. Reshape and Expand with the batch in their shape copy it, Resize computes
    it, and what is joined to the data or starts an LSTM, GRU or RNN is repeated for each item. Nodes that cannot take
    another batch are named; so are outputs that do not follow it. For the batch the model had, all numbers stay the
    same; a larger one is tried.

        make_batch_dynamic: {axes: {state: 1}}
    """

    about = "shapes"
    uses_inputs = True

    inputs: Patterns = ()
    """Inputs with a batch; none means all whose first dimension is that of the first input, or free."""
    axes: dict[str, Annotated[int, Field(ge=0)]] = Field(default={})
    """Input -> its axis of items, where that is not the first; these inputs have a batch too."""
    name: Annotated[str, Field(min_length=1)] = "batch"
    """What the dimension is called; one that is free already keeps its name."""
    try_it: bool = True
    """Run the result on the CPU and refuse it unless a batch of three gives what its items give alone; the recipe's
    `inputs` say how large what else is free shall be. Models over 1.5 GiB are not tried."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.surgeries.batch_trial import try_batch
        from ndld_flow.graph.edit.surgeries.free_batch import free_batch

        freed = free_batch(edited, self.inputs, self.axes, self.name)
        if self.try_it:
            try_batch(edited, freed.batch, freed.outputs)
        names = ", ".join((*freed.batch.axes, *freed.outputs))
        return f"batch free in {names}; {len(freed.changed)} nodes had it built in"
