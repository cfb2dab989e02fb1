"""How to open an engine and run it: plain values that go to a measuring process. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.models.tensors import TensorSpec

if TYPE_CHECKING:  # measuring processes start with this module
    from ndld_flow.records.build import EngineBackend


@dataclass(frozen=True)
class EngineSession:
    """An engine, the model it must be of, and how to run it."""

    backend: EngineBackend
    engine: Path
    model: Path
    """The ONNX model that weights come from when the engine is refitted."""
    inputs: tuple[TensorSpec, ...]
    """What the model declares; the engine must have the same."""
    outputs: tuple[TensorSpec, ...]
    built_with: str = ""
    """Version of the TensorRT that built it; empty where that is not known."""
    refit: bool = False
    """Give a refittable engine the model's weights before it runs."""
    without_weights: bool = False
    """It was built without weights and runs only when it is refitted."""
    plugins: tuple[Path, ...] = ()
    """Plugin libraries to load before the engine."""
    trust: bool = False
    """Allow the code that is embedded in the engine."""
    gpu: int = 0
    optimization_profile: int = 0
    streams: int = 1
    """Inferences side by side, each with a stream of its own."""
    cuda_graph: bool = False
    transfers: bool = False
    """Copies between host and device are a part of each pass."""
    spin_wait: bool = True
    """Wait for the GPU by asking again and again rather than by sleeping."""

    @property
    def provider(self) -> str:
        """What runs it, as `SessionSettings` calls it."""
        return self.backend

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> EngineSession:
        """From what `dataclasses.asdict` made of one, by way of JSON."""
        paths = {name: Path(raw[name]) for name in ("engine", "model")}
        specs = {name: tuple(map(_spec, raw[name])) for name in ("inputs", "outputs")}
        return cls(**{**raw, **paths, **specs, "plugins": tuple(map(Path, raw["plugins"]))})


def _spec(raw: Mapping[str, Any]) -> TensorSpec:
    shape = raw["shape"]
    return TensorSpec(raw["name"], raw["dtype"], None if shape is None else tuple(shape))
