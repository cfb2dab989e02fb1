"""A model in fp32 that computes what hardware with fp16 storage and fp32 arithmetic computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EmulatedModel:
    """What was done to emulate a model's stored precisions."""

    outputs: Mapping[str, str]
    """Output that is fp32 now -> the dtype it is stored in: `float16`, `bfloat16`. Names and inputs stay as they are."""
    roundings: int
    """Tensors that are rounded to their stored type."""
    notes: tuple[str, ...]
    """Sentences for people: what could not be emulated."""


def emulate_stored(source: Path, target: Path) -> EmulatedModel | None:
    """Write `source` to `target` with fp32 arithmetic, and every fp16 and bf16 tensor rounded to its type as stored.

    ONNX Runtime computes fp16 models in fp32 on a CPU and never rounds in between: what overflows on a GPU is invisible
    there. Here a Cast to the stored type and one back to fp32 stand behind each node that computes such a tensor; the
    tensor behind them has the original name. Inputs keep their dtypes. None, and nothing written, when no tensor of
    the model is fp16 or bf16. Raises `ModelError` for a model that cannot be read or emulated.
    """
    raise NotImplementedError
