"""Make the batch dimension dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NewName, Patterns

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeBatchDynamic(Operation):
    """Make the batch dimension of a model that was exported for a fixed batch dynamic.

    Inputs and outputs get a named dimension. Reshape and Expand with the batch in their shape copy it, Resize computes
    it, and constants that are concatenated with the data or start an LSTM, GRU or RNN are repeated for each item. Nodes
    that do not support another batch are listed, and so are outputs that do not depend on it. For the original batch
    all results are exactly the same; a larger batch is tested.

        make_batch_dynamic: {axes: {state: 1}}
    """

    heading = "shapes"

    select: Patterns = ()
    """Inputs with a batch dimension; by default all whose first dimension equals that of the first input, or is
    dynamic."""
    axes: dict[str, Annotated[int, Field(ge=0)]] = Field(default={})
    """Input -> its batch axis, if that is not the first; these inputs are selected too."""
    name: NewName = "batch"
    """Name of the dimension; a dimension that is dynamic already keeps its name."""
    try_it: bool = True
    """Run the result on the CPU and reject it unless a batch of three gives the same results as its items one by one.
    The recipe's `inputs` set the sizes of other dynamic dimensions. Models over 1.5 GiB are not tested."""

    @property
    def uses_inputs(self) -> bool:
        return True

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.free_batch import free_batch, try_batch

        freed = free_batch(edited, self.select, self.axes, self.name)
        if self.try_it:
            try_batch(edited, freed)
        names = ", ".join((*freed.batch.axes, *freed.outputs))
        return f"dynamic batch in {names}; {counted(len(freed.changed), 'node')} with a fixed batch changed"
