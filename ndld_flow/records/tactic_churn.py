"""Results of building one engine several times: the layers that differ between builds."""

from __future__ import annotations

import statistics
from typing import Literal

from ndld_flow.records.base import Record

Change = Literal["tactic", "format", "layers"]
"""`layers`: the layers differ (another fusion, or an additional reformat); `format`: a tensor has another type or
memory layout; `tactic`: only the tactic differs."""


class RebuiltEngine(Record):
    """One of the builds."""

    label: str
    """Its name among the builds: `attempt 2`."""
    engine_digest: str
    engine_bytes: int
    build_s: float
    layer_count: int
    read_timings: bool
    """Whether it read timings from a cache: it then has the tactics of earlier builds."""
    latency_ms: float | None = None
    """Median; None where it was not measured."""


class ChangedLayer(Record):
    """Layers of the builds that do the same work and differ."""

    name: str
    """Of the first build that has it; several are joined by ` + `."""
    type: str
    onnx_nodes: tuple[str, ...]
    change: Change
    """The largest change between any two builds: `layers`, then `format`, then `tactic`."""
    built: tuple[str, ...]
    """For each build, its tactics, or its other form; empty where it has no such layer."""
    variants: int
    """Different outcomes among the builds."""
    time_share: float | None = None
    """Of the time of all layers, mean over the builds, 0 to 1; None where they were not all measured."""


class Spread(Record):
    """One number over the builds."""

    metric: Literal["engine_bytes", "build_s", "layers", "latency.median"]
    unit: str
    values: tuple[float, ...]
    """In the order of the builds."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def relative(self) -> float:
        """(largest - smallest) / median; 0 where the median is 0."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


class TacticChurn(Record):
    """Several builds of one model with the same settings."""

    builds: tuple[RebuiltEngine, ...]
    basis: Literal["engines as built", "engines as measured"]
    """Source of the layers: the builder's report, or the engine when it ran."""
    tells_tactics: bool
    """Whether any layer has a tactic: otherwise only different layers and formats can be noticed."""
    row_count: int
    """Number of layers, with corresponding layers of several builds counted once."""
    changed: tuple[ChangedLayer, ...]
    """Slowest first, if measured; else in order of execution."""
    layer_share: float
    """Layers that changed, of all layers of all builds, 0 to 1."""
    time_share: float | None
    """Share of the changed layers in the time of all layers, mean over the builds; None where not all were measured."""
    spreads: tuple[Spread, ...]

    @property
    def different_engines(self) -> int:
        """Engines that differ in any byte."""
        return len({build.engine_digest for build in self.builds})
