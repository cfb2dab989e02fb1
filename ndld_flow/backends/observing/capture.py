"""Tensors inside a model, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.running.onnxruntime_session import SessionSettings


@dataclass(frozen=True)
class TensorPlace:
    """A tensor and the node that makes it."""

    name: str
    node: str
    """The node's name, which may be empty."""
    op_type: str
    position: int
    """Of the node in the order of execution, from 0; nodes of bodies are counted behind the node they stand in."""
    in_body: bool
    """Inside an If, Loop or Scan: it has no one value, and cannot be captured."""


def tensors_of(path: Path) -> tuple[TensorPlace, ...]:
    """Every tensor that a node makes, in the order of execution. Raises `ModelError` when the model cannot be read."""
    raise NotImplementedError


def capture(
    path: Path,
    tensors: Sequence[str],
    samples: Iterable[Mapping[str, Array]],
    settings: SessionSettings,
    scratch: Path,
) -> Iterator[dict[str, Array]]:
    """Run a model on every sample and give the values of these tensors, one dict a sample.

    Where they are too many to hold at once the model is run several times, and the arrays are mapped from files in
    `scratch`, which go when the next sample is asked for. Tensors in bodies, and what is no tensor, are left out.
    Raises `RequestError` for a name that the model does not have, `ModelError` and `BackendError` as `open_model`.
    """
    raise NotImplementedError
