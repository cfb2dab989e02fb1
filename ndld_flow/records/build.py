"""Records of a TensorRT engine: its build, its layers, and its lock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.records.comparison import MatchMethod
from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, TensorInfo


class LockedRequest(Record):
    """Everything that decides the engine that a build produces. Empty strings are unknown, or without influence."""

    backend: EngineBackend
    version: str
    """Version of the library: `10.16.1.11`."""
    library_files: dict[str, str] = {}
    """Shared library that was loaded -> blake3 of its file; empty where the system does not list them."""
    gpu: str = ""
    """The GPU on which tactics were timed; empty for an engine that is built ahead of time, as is the driver."""
    driver: str = ""
    model_digest: str
    profiles: tuple[BuiltProfile, ...]
    options: dict[str, JsonValue]
    """The settings that influence the engine, defaults included."""
    files: dict[str, str] = {}
    """Setting that names a file, such as `plugins[0]` -> blake3 of the file."""

    @property
    def library(self) -> str:
        """The library with its version: `TensorRT 10.16.1.11`."""
        return f"{TITLES[self.backend]} {self.version}"


class LockedLayer(Record):
    """One layer of the engine."""

    type: str
    precision: str = ""
    tactic: str = ""
    """Empty if the builder does not reveal it."""
    formats: str = ""
    """Types and formats of its inputs and outputs: `float16 hwc8 -> float16 hwc8`."""


class EngineLock(Document):
    """Tactics and layers of an engine: `build_engine: {lock: engine.lock}` builds the same again, or fails."""

    document: Literal["engine lock"] = "engine lock"
    format_version: int = 1
    file_name = "engine.lock"
    request: LockedRequest
    engine_digest: str
    """blake3 of the engine's file."""
    engine_bytes: int
    layers_basis: LayersBasis
    layers: dict[str, LockedLayer]
    """Layer -> the builder's choice for it. Repeated names have `#2`, `#3`, ... appended, and the numbers that the
    compiler gives to its own tensors are left out."""
    tactics: dict[str, str] = {}
    """Key of the timing cache -> hash of the chosen tactic, hexadecimal; empty without a timing cache."""
    timing_cache: str = ""
    """The serialized timing cache, zlib-compressed, in base64; empty if no tactics were timed or kept."""


_COUNTER = re.compile(r"(?<=__mye|hvar\^)\d+")


def stable_name(name: str) -> str:
    """Return a layer's name without the numbers of the compiler's own tensors and variables: they depend on the order
    in which its threads work."""
    return _COUNTER.sub("", name)


def stable_names(names: Iterable[str]) -> list[str]:
    """Return the stable names of an engine's layers; repeated ones have `#2`, `#3`, ... appended."""
    seen: Counter[str] = Counter()
    unique: list[str] = []
    for name in map(stable_name, names):
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


EngineVerdict = Literal["identical", "equal", "different", "undecided"]
LayerAspect = Literal["type", "precision", "tactic", "formats", "shapes", "name"]


class MatchedEngineLayer(Record):
    """Layers of two engines that do the same work, or layers that only one engine has."""

    before: tuple[int, ...]
    """Positions in the layers of the earlier engine; empty if it has no such layer, as is `after`."""
    after: tuple[int, ...]
    names: tuple[str, ...]
    """Names of the layers of the later engine, or of the earlier one."""
    method: MatchMethod
    confidence: float
    """Confidence of the match, 0 to 1; 0 for layers of one engine."""
    changed: tuple[LayerAspect, ...] = ()
    """Aspects that differ. `name`: more than the compiler's own numbers."""
    unknown: tuple[LayerAspect, ...] = ()
    """Aspects that are not recorded for one or both."""


class EngineComparison(Document):
    """Two engines, compared without running them: `comparison.json` of `compare`, also printed by `diff`."""

    document: Literal["engine comparison"] = "engine comparison"
    format_version: int = 3
    verdict: EngineVerdict
    """`identical`: equal bytes. `equal`: other bytes; equal requests, layers, precisions, formats and tactics.
    `undecided`: other or unknown bytes, and nothing shows that the engines are equal."""
    differences: tuple[str, ...]
    """One phrase for each kind of difference, with the first layers; empty for identical engines."""
    causes: tuple[str, ...]
    """Differences of the library, the GPU, the driver, the model, settings and shapes."""
    layer_count: int
    """Layers of the later engine."""
    before_bytes: int | None
    """None if the size of the engine's file is not recorded, as in exports of layers."""
    after_bytes: int | None
    rows: tuple[MatchedEngineLayer, ...] = ()
    """All layers of both engines, in the order of the earlier one; empty if only their locks were compared."""


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
