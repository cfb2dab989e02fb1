"""Fill initializers with generated numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import RandomKind, SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class GenerateInitializers(Operation):
    """Fill initializers with generated numbers, different ones in each.

        generate_initializers: {select: "layers.*.weight", kind: normal, seed: 7}

    The same seed generates the same numbers on every machine.
    """

    heading = "weights"

    select: SelectTensors
    """Initializers to fill."""
    kind: RandomKind
    """`normal` (mean 0, standard deviation 1; rounded for integers), `zeros`, `ones`, `uniform_positive` (above 0, at
    most 1; for integers 1 to 100), or `uniform_negative` (the same below 0)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random numbers."""
    allow_empty: bool = False
    """Succeed when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors, replace_tensor
        from ndld_flow.models.derived_tensors import GeneratedTensor

        constants = find_tensors(edited.model, self.select, self.allow_empty)
        for constant in constants:
            shape = [int(dim) for dim in constant.tensor.shape.numpy()]
            name = f"{constant.scope}/{constant.name}" if constant.scope else constant.name
            replace_tensor(constant, GeneratedTensor(self.kind, constant.tensor.dtype, shape, name, self.seed))
        return f"{len(constants)} initializers filled with {self.kind}"
