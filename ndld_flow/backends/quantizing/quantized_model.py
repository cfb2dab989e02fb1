"""A quantised model, written from a prepared one and its ranges: quick, so that a search may write many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.backends.quantizing.calibration import Ranges
from ndld_flow.backends.quantizing.prepared_model import PreparedModel
from ndld_flow.backends.quantizing.settings import QuantizeSettings


@dataclass(frozen=True)
class QuantizedModel:
    """What was written."""

    nodes: int
    """How many nodes compute in the quantised type."""
    notes: tuple[str, ...]
    """Sentences for people: what ONNX Runtime's quantizer had to say."""


def write_quantized(
    prepared: PreparedModel, target: Path, ranges: Ranges, settings: QuantizeSettings, exclude: Collection[str] = ()
) -> QuantizedModel:
    """Write the prepared model to `target`, quantised but for the nodes whose first outputs are in `exclude`.

    The same settings give the same bytes. Raises `RequestError` when the quantizer cannot do it.
    """
    raise NotImplementedError
