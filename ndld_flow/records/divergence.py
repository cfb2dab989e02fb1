"""Values of tensors inside a model, and the divergence of two runs of it, layer by layer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ndld_flow.records.base import Record

Count = Annotated[int, Field(ge=0, le=2**53)]
"""Number of elements, within the exact integers of JavaScript."""


class TensorRange(Record):
    """The values of one tensor over all samples. Shares are fractions, 0 to 1, of all its elements."""

    tensor: str
    elements: Count
    minimum: float
    """Smallest finite value; minimum, maximum and rms are 0 when nothing is finite."""
    maximum: float
    rms: float
    """Root of the mean square of the finite values."""
    smallest_abs: float
    """Magnitude of the finite value other than 0 that is nearest to 0; 0 when all are 0."""
    nan_count: Count = 0
    inf_count: Count = 0
    beyond_share: float = 0.0
    """Finite values larger than the format's largest (65504 for fp16)."""
    subnormal_share: float = 0.0
    """Values other than 0 below the format's smallest normal number, where it has fewer bits."""
    vanishing_share: float = 0.0
    """Values other than 0 that the format rounds to 0."""

    @property
    def largest_abs(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))


class LayerDivergence(Record):
    """One tensor of the candidate against the same tensor of the reference."""

    position: int
    """Position of its node in the order of execution, from 0."""
    node: str
    op_type: str
    tensor: str
    shape: tuple[int, ...] = ()
    metrics: dict[str, float]
    """As in `records.accuracy`, of the worst sample: `slice_rms`, `cosine`, `snr_db`, `max_abs` and `relative_rms`.
    Empty where nothing is finite in both."""
    worst_slice: str = ""
    """The slice where `slice_rms` is worst, such as `channel 4`; empty where it is the whole tensor."""
    reads: tuple[str, ...] = ()
    """Tensors of the other layers that it is computed from, with none of the layers between."""
    nonfinite: int = 0
    """Elements that are NaN or infinite in the candidate only."""
    range: TensorRange | None = None
    """The reference's values against the candidate's format."""
