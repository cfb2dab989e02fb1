"""Requirements of GPU measurements missing on this machine, found before anything runs. Imports no runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ndld_flow.base.errors import BackendError
from ndld_flow.machine.description import has_nvidia_gpu
from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library import TITLES, find_library
from ndld_flow.step import Foresight

_ON_NVIDIA = ("cuda", "tensorrt", "nvtensorrtrtx", "tensorrt_rtx")
"""Execution providers of ONNX Runtime, without `ExecutionProvider`."""


def foresee_profile(backend: Literal["onnxruntime"] | EngineBackend, provider: str, library: Path | None) -> Foresight:
    """Return what is missing for an engine's TensorRT, or for a provider of ONNX Runtime that needs an NVIDIA GPU."""
    if backend == "onnxruntime":
        return Foresight(lacks=tuple(_missing_for_provider(provider)))
    return Foresight(lacks=tuple(_missing_for_engine(backend, library)))


def _missing_for_provider(provider: str) -> Iterator[str]:
    if provider.lower().removesuffix("executionprovider") in _ON_NVIDIA and not has_nvidia_gpu():
        yield (
            f"provider {provider} is set, but there is no NVIDIA GPU here: set `provider: cpu`, or leave the "
            "step out with '~steps.NAME'"
        )


def _missing_for_engine(backend: EngineBackend, library: Path | None) -> Iterator[str]:
    try:
        missing = find_library(backend, library).missing
    except BackendError as error:
        missing = str(error)
    if missing:
        yield missing
    if not has_nvidia_gpu():
        yield (
            f"no NVIDIA GPU here, and profile needs one for {TITLES[backend]}: leave the step out with '~steps.NAME', "
            "or use `backend: onnxruntime`"
        )
