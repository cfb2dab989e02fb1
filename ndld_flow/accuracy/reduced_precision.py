"""Which precision below fp32 a model's tensors are stored in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ndld_flow.accuracy.inside.tensor_places import tensors_of
from ndld_flow.models.element_types import element_of

_REDUCED = {"float16": "fp16", "bfloat16": "bf16"}


def reduced_precision(model: Path) -> str:
    """`fp16` or `bf16`, whichever more tensors inside have; empty where none has either."""
    found = Counter(_REDUCED.get(element_of(place.type), "") for place in tensors_of(model))
    del found[""]
    return max(found, key=lambda precision: found[precision], default="")
