"""The values of a tensor against what a floating-point format can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.backends.models.tensors import Array
from ndld_flow.records.divergence import TensorRange


@dataclass(frozen=True)
class FormatLimits:
    """What a floating-point format can hold."""

    precision: str
    """As people call it: `fp16`."""
    largest: float
    """Largest finite value."""
    smallest_normal: float
    """Below it, numbers have fewer bits."""
    smallest: float
    """Smallest positive value (subnormal)."""


FORMAT_LIMITS: Mapping[str, FormatLimits] = {}
"""`fp16`, `bf16`, `fp32`, `fp8e4m3`, `fp8e5m2`"""


class RangeMeter:
    """The range of one tensor's values, sample after sample."""

    def __init__(self, tensor: str, limits: FormatLimits) -> None: ...

    def add(self, array: Array) -> None:
        """Take one sample in."""

    def range(self) -> TensorRange:
        """Of everything that was added."""
        raise NotImplementedError
