"""Records of a TensorRT engine: its build and its layers."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, TensorInfo


class ShapeRange(Record):
    """The shapes of one input that an optimization profile allows."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    """The shape for which tactics are chosen."""
    max: tuple[int, ...]
    values: bool = False
    """True if these are the values of a shape tensor rather than its shape."""


class BuiltProfile(Record):
    """One optimization profile."""

    inputs: dict[str, ShapeRange]
    """All inputs, dynamic or not, in the model's order."""
    basis: str
    """Origin of the shapes: `profiles[0]`, `inputs`, `batch`, `fixed shapes`, `inferred batch`."""


class Constraint(Record):
    """A precision that was requested for one layer, and the result."""

    node: str
    """Name of the ONNX node."""
    precision: str
    """As requested: `fp32`, `fp16`, ..."""
    outcome: str
    """`set on 1 layer`, `Casts in the model`, `the layer has it already`, `ignored: ...`."""

    @property
    def is_ignored(self) -> bool:
        """True if it was ignored."""
        return self.outcome.startswith("ignored")


class TimingCacheUse(Record):
    """The use of a timing cache by a build."""

    file: str
    """Its name among the caches of this machine."""
    loaded_bytes: int = 0
    saved_bytes: int = 0
    loaded_entries: int | None = None
    """None if the release does not report it."""
    saved_entries: int | None = None
    note: str = ""
    """Such as `TensorRT-RTX has no timings to keep`."""


class BuildMemory(Record):
    """Memory of the engine and of its build, as reported by the builder; 0 if it was not reported."""

    build_peak_bytes: int = 0
    """Host memory of the building process."""
    activation_bytes: int = 0
    weights_bytes: int = 0
    scratch_bytes: int = 0
    """Largest scratch memory of a layer."""


LayersBasis = Literal["engine inspector", "build log", "network as parsed"]
"""Source of an engine's layers. An engine can be opened and inspected only on a GPU; the log of a detailed build lists
the compiled layers; without either, only the network before its optimization is known."""


class Build(Document):
    """One engine of `build_engine`: the requested and the effective settings, and the result."""

    document: Literal["build"] = "build"
    format_version: int = 4
    file_name = "build.json"
    label: str
    """Display name of the engine."""
    model_digest: str
    """Digest of the model that was read (before Casts were inserted)."""
    backend: EngineBackend
    version: str
    """Version of the library that built it, such as `10.16.1.11`."""
    versions: dict[str, str]
    machine: Machine
    built_at: Time
    compute_capabilities: tuple[str, ...] = ()
    """`8.6`, ...; empty for an engine of this machine's own GPU."""
    device: int = 0
    typing: str
    """`strongly typed`, `weakly typed: FP16, TF32`, `strongly typed, constraints as Casts`."""
    profiles: tuple[BuiltProfile, ...]
    options: dict[str, JsonValue]
    """Every setting, defaults included."""
    flags: tuple[str, ...]
    """Builder flags that were on, by TensorRT's names."""
    network_flags: tuple[str, ...] = ()
    applied: dict[str, JsonValue]
    """The builder's configuration as read back when the build started: `builder_optimization_level`, ..."""
    constraints: tuple[Constraint, ...] = ()
    inputs: tuple[TensorInfo, ...]
    """-1 for a dynamic dimension."""
    outputs: tuple[TensorInfo, ...]
    marked_outputs: tuple[str, ...] = ()
    """Those of `outputs` that are marked for inspection only: the engine fuses layers differently from one without."""
    layers: tuple[Layer, ...]
    """Without times."""
    layers_basis: LayersBasis
    network_layer_count: int
    """Layers before optimization."""
    engine_bytes: int
    engine_digest: str
    """blake3 of the engine's file."""
    parse_s: float
    build_s: float
    memory: BuildMemory
    timing_cache: TimingCacheUse | None = None
    warnings: tuple[str, ...] = ()
    """The builder's warnings, without repeats."""
    notes: tuple[str, ...] = ()
    """Notes: assumptions, settings without effect."""

    @property
    def library(self) -> str:
        """The library that built it, with its version: `TensorRT-RTX 1.7.1.116`."""
        return f"{TITLES[self.backend]} {self.version}"

    @property
    def is_strongly_typed(self) -> bool:
        """True if the types are the model's."""
        return self.typing.startswith("strongly typed")

    def as_profile(self) -> Profile:
        """Return the engine as a profile without measurements, for code that reads layers."""
        return Profile(
            label=self.label,
            model_digest=self.model_digest,
            backend=self.backend,
            machine=self.machine,
            versions=self.versions,
            options=self.options,
            inputs=self.inputs,
            outputs=self.outputs,
            warmup_passes=0,
            warmup_ms=0,
            runs=(),
            layers=self.layers,
        )
