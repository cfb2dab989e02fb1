"""The lock file of an engine: everything that its build depended on, and the engine that resulted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.records.build import BuiltProfile, LayersBasis
from ndld_flow.records.comparison import MatchMethod
from ndld_flow.records.document import Document, Record


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
