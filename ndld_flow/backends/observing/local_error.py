"""What every node alone does wrong at reduced precision: each is fed the reference's exact values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.backends.fp16.tensors import Loss
from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.onnxruntime_session import SessionSettings
from ndld_flow.records.divergence import TensorRange


@dataclass(frozen=True)
class LocalError:
    """One node at reduced precision, over all samples."""

    node: str
    op_type: str
    position: int
    """In the order of execution, as in `TensorPlace`."""
    outputs: tuple[str, ...]
    relative_rms: float
    """rms(c - r) / rms(r) of its worst output, where both are finite; c is computed from rounded inputs and weights, in
    fp32, and rounded."""
    nonfinite: int
    """Elements of its outputs that are NaN or infinite only at reduced precision."""
    output_ranges: tuple[TensorRange, ...]
    """The exact outputs against the format: what overflows or vanishes when it is stored."""
    input_ranges: tuple[TensorRange, ...]
    """The exact inputs against the format: what has overflowed before."""
    weights: tuple[Loss, ...]
    """Its weights and what each loses: `clamped`, `vanished`, `largest`."""


def local_errors(
    source: Path, precision: str, samples: Sequence[Mapping[str, Array]], settings: SessionSettings, scratch: Path
) -> dict[str, LocalError]:
    """First output of a node -> what it does wrong at `fp16` or `bf16`, for every node that can have the precision.

    Nodes that only move data, control flow and nodes in bodies are left out. Inputs and weights are rounded as
    `convert_fp16` stores them. Raises `ModelError` when the model cannot be read or run.
    """
    raise NotImplementedError
