"""What building one engine several times came to: which layers came out alike."""

from __future__ import annotations

import statistics
from typing import Literal

from ndld_flow.records.base import Record

Change = Literal["tactic", "format", "layers"]
"""`layers`: other layers do the work (fused otherwise, or a reformat that is not always there); `format`: a tensor has
another type or lies in memory otherwise; `tactic`: only the tactic is another."""


class RebuiltEngine(Record):
    """One of the builds."""

    label: str
    """What tells it from the others: `attempt 2`."""
    engine_digest: str
    engine_bytes: int
    build_s: float
    layer_count: int
    read_timings: bool
    """Whether it took timings from a cache: it then has the tactics of earlier builds."""
    latency_ms: float | None = None
    """Median; None where it was not measured."""


class ChangedLayer(Record):
    """Layers of the builds that do the same work and did not come out alike."""

    name: str
    """Of the first build that has it; several are joined by ` + `."""
    type: str
    onnx_nodes: tuple[str, ...]
    change: Change
    """The greatest there is between any two builds: `layers`, then `format`, then `tactic`."""
    built: tuple[str, ...]
    """For each build, its tactics, or what else it came out as; empty where it has no such layer."""
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
    """Where layers are known from: what the builder told, or the engine when it ran."""
    tells_tactics: bool
    """Whether any layer has a tactic: without, only other layers and formats can be seen."""
    row_count: int
    """Layers, those of several builds that do the same work counted once."""
    changed: tuple[ChangedLayer, ...]
    """What takes longest first, where it was measured; else as it runs."""
    layer_share: float
    """Layers that changed, of all layers of all builds, 0 to 1."""
    time_share: float | None
    """What they take of the time of all layers, mean over the builds; None where not all were measured."""
    spreads: tuple[Spread, ...]

    @property
    def different_engines(self) -> int:
        """Engines that differ in any byte."""
        return len({build.engine_digest for build in self.builds})
