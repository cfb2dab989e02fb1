"""Make sparse initializers dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeDense(Operation):
    """Make sparse initializers dense.

        make_dense: {select: "*"}

    Required for engine builders that do not support sparse initializers.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors
    """Initializers; dense ones are ignored."""
    allow_empty: bool = False
    """Succeed when no sparse initializer is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors, to_dense
        from ndld_flow.models.sparse_tensors import SparseInitializer

        selected = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        sparse = [(held, held.tensor) for held in selected if isinstance(held.tensor, SparseInitializer)]
        if not sparse and not self.allow_empty:
            raise RequestError("no selected initializer is sparse")
        for held, tensor in sparse:
            held.hold(to_dense(tensor, held.name))
        return f"{len(sparse)} initializers made dense"
