"""Fill initializers with made-up numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected
from ndld_flow.graph.edit.tensor_value import Kind

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class GenerateInitializers(Operation):
    """Fill initializers with made-up numbers, each with its own.

        generate_initializers: {select: "layers.*.weight", kind: normal, seed: 7}

    The same seed makes the same numbers on every machine. Integers and truth values have their own: see `kind`.
    """

    about = "weights"

    select: TensorsSelected
    """Which initializers."""
    kind: Kind
    """`normal` (mean 0, standard deviation 1; of integers, rounded), `zeros`, `ones`, `uniform_positive` (above 0, at
    most 1; of integers 1 to 100), or `uniform_negative` (the same below 0)."""
    seed: int = Field(default=0, ge=0)
    """Another seed makes other numbers."""
    allow_empty: bool = False
    """Let it pass when nothing is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.initializers import generate
        from ndld_flow.graph.edit.tensor_selecting import fitting_tensors

        held = fitting_tensors(edited.model, self.select, self.allow_empty)
        generate(held, self.kind, self.seed)
        return f"{len(held)} initializers filled with {self.kind}"
