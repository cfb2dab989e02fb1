"""Settings of an engine's session: plain values for a measuring process. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.models.tensors import TensorSpec

if TYPE_CHECKING:  # measuring processes start with this module
    from ndld_flow.base.extras import EngineBackend


@dataclass(frozen=True)
class EngineSettings:
    """An engine, its model, and how to run it."""

    backend: EngineBackend
    engine: Path
    model: Path
    """The ONNX model from which weights are taken when the engine is refitted."""
    inputs: tuple[TensorSpec, ...]
    """Inputs that the model declares; the engine must have the same."""
    outputs: tuple[TensorSpec, ...]
    marked: tuple[str, ...] = ()
    """Tensors of the model that the engine has as outputs too, for inspection."""
    debug_tensors: bool = False
    """Report the engine's debug tensors among its outputs."""
    built_with: str = ""
    """Version of the TensorRT that built it; empty if that is not known."""
    refit: bool = False
    """Refit a refittable engine with the model's weights before it runs."""
    without_weights: bool = False
    """The engine was built without weights and must be refitted."""
    plugins: tuple[Path, ...] = ()
    """Plugins to load before the engine: libraries, or `.py` files."""
    trust: bool = False
    """Allow code embedded in the engine."""
    lean_runtime: Path | None = None
    """The library of the lean runtime that opens the engine."""
    runtime_cache: Path | None = None
    """Kernels that TensorRT-RTX has compiled before."""
    dla_core: int | None = None
    """The DLA core of an engine that was built for one."""
    weight_streaming_budget: int | str | None = None
    """Bytes or percent (`50 %`) of the weights to keep on the GPU, `automatic`, or None for TensorRT's default: all."""
    gpu: int = 0
    optimization_profile: int = 0
    streams: int = 1
    """Concurrent inferences, each on a stream of its own."""
    queue: int = 0
    """Inferences that are enqueued on each stream before the running one ends."""
    cuda_graph: bool = False
    transfers: bool = False
    """Each pass includes the copies between host and device."""
    spin_wait: bool = True
    """Busy-wait for the GPU instead of sleeping."""
