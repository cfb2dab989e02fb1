"""The libraries that build and run engines."""

from __future__ import annotations

from typing import Literal

EngineBackend = Literal["tensorrt", "tensorrt_rtx"]
"""`tensorrt` for data centres, workstations and Jetson; `tensorrt_rtx` for RTX GPUs."""
TITLES: dict[EngineBackend, str] = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
