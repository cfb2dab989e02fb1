"""The settings with which OpenVINO compiles a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompileSettings:
    """Settings of a compiled model, as those of a recipe (`settings.py`), which describe them."""

    hint: str = "latency"
    streams: int = 0
    requests: int = 0
    threads: int = 0
    inference_precision: str = "f32"
    dynamic_quantization: int | None = None
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
