"""Make initializers sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Fraction
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import SelectTensors

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class MakeSparse(Operation):
    """Store initializers with many zeros as their nonzero values and positions.

        make_sparse: {select: {larger_than: 1 MiB}, zeros: 80 %}

    ONNX Runtime makes them dense when it loads the model: files get smaller, inference gets no faster.
    """

    heading = "weight storage"
    keeps_outputs = True

    select: SelectTensors
    """Initializers to consider; those with fewer zeros stay dense."""
    zeros: Fraction = 0.75
    """Minimum fraction of zeros. A position takes eight bytes: for fp32, less than two thirds saves nothing."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or nothing has so many zeros."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.base.quantities import share
        from ndld_flow.graph.edit.constant_tensors import (
            FIRST_WITH_SPARSE_INITIALIZERS,
            can_be_sparse,
            find_tensors,
            to_sparse,
            zeros_share,
        )

        selected = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        shares = {held.value: zeros_share(held.tensor) for held in selected if can_be_sparse(held)}
        chosen = [held for held in selected if shares.get(held.value, -1) >= self.zeros]
        if not chosen and not self.allow_empty:
            most = f"the largest fraction is {share(max(shares.values()))}" if shares else "none of them can be sparse"
            raise RequestError(f"no initializer has {share(self.zeros)} zeros; {most}")
        for held in chosen:
            edited.log.info("%s: %s zeros", held.name, share(shares[held.value]))
            held.value.const_value = to_sparse(held.tensor, held.name)
        if chosen:
            edited.raise_ir_version(FIRST_WITH_SPARSE_INITIALIZERS)
        return f"{len(chosen)} initializers made sparse"
