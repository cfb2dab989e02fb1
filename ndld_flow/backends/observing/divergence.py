"""How far two runs of a model diverge, layer by layer, and where that begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.onnxruntime_session import SessionSettings
from ndld_flow.records.divergence import LayerDivergence


@dataclass(frozen=True)
class Observed:
    """A model that is run to look inside."""

    path: Path
    settings: SessionSettings


Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""


def diverge(
    reference: Observed,
    candidate: Observed,
    samples: Sequence[Mapping[str, Array]],
    tensors: Sequence[str] | None = None,
    precision: str = "",
    progress: Progress = lambda done, total, what: None,
) -> tuple[LayerDivergence, ...]:
    """Compare every tensor that both models have, by name, in the order of the reference's execution.

    `samples` are named as the reference's inputs, and may be read several times. `tensors` are the names to compare,
    None for all of them. `precision` (`fp16`, `bf16`) adds the reference's ranges against that format.
    """
    raise NotImplementedError


def first_divergent(layers: Sequence[LayerDivergence], bounds: Mapping[str, float]) -> LayerDivergence | None:
    """The layer where what goes wrong begins, None when nothing does. `bounds` are `Tolerance.bounds()`."""
    raise NotImplementedError
