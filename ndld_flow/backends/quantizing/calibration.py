"""Ranges of a model's activations, measured on samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.quantizing.prepared_model import PreparedModel
from ndld_flow.backends.quantizing.settings import QuantizeSettings


@dataclass(frozen=True)
class Range:
    """What an activation's scale spans."""

    low: float
    high: float


@dataclass(frozen=True)
class Ranges:
    """The ranges of a prepared model's activations."""

    tensors: Mapping[str, Range]
    sample_count: int
    notes: tuple[str, ...] = ()
    """Sentences for people."""


def calibrate(
    prepared: PreparedModel,
    samples: Iterable[Mapping[str, Array]],
    settings: QuantizeSettings,
    scratch: Path,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Ranges:
    """Run the prepared model on every sample and take the range of every activation that may be quantised.

    Memory is bounded by one sample. With `mode: dynamic` there is nothing to measure. Raises `ModelError` when the
    model does not run, `RequestError` when a tensor holds NaN or infinity.
    """
    raise NotImplementedError
