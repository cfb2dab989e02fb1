"""Keep initializers by their values other than 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.units import Fraction
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.tensor_selection import TensorsSelected

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeSparse(Operation):
    """Keep initializers by their values other than 0, where most are 0.

        make_sparse: {select: {larger_than: 1 MiB}, zeros: 80 %}

    ONNX Runtime makes them dense when it loads the model: files get smaller, runs no faster.
    """

    about = "how weights are kept"
    keeps_outputs = True

    select: TensorsSelected
    """Which initializers are looked at; those with fewer zeros stay as they are."""
    zeros: Fraction = 0.75
    """How much of a tensor must be 0. Positions take eight bytes each: of fp32, less than two thirds saves nothing."""
    allow_empty: bool = False
    """Let it pass when nothing is selected, or nothing has so many zeros."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.sparse_making import make_sparse

        return f"{make_sparse(edited, self)} initializers made sparse"
