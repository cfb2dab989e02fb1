"""The record of a placement: the layers of a model that were quantized because it pays, and the evidence."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.document import Document, Record
from ndld_flow.records.measurement import Machine
from ndld_flow.records.noise import Clock
from ndld_flow.records.power import Power

"""Its file, beside the model."""
RegionDecision = Literal["quantized", "not faster", "inaccurate", "not measured", "not tried", "nothing pays"]
"""The outcome for a region. `not faster`: alone or as a part of the model. `inaccurate`: it breaks the tolerance.
`not tried`: it was left out to meet the tolerance, and the time was used up before it was tried with the rest.
`nothing pays`: it might pay, but no set of regions does."""


class MeasuredRatio(Record):
    """The latency of a quantized model over that of its float counterpart, measured in turns."""

    float_ms: float
    """Median pass of the float model, by the clock that decides."""
    ratio: float
    low: float
    """With `high` the 95 % interval, which accounts for a test after every round."""
    high: float
    clock: Clock
    rounds: int

    @property
    def text(self) -> str:
        """The ratio with its interval, such as `1.02 (0.97 to 1.06)`."""
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


class PlacedRegion(Record):
    """A layer and the operators that the target computes in integers together with it."""

    node: str
    op_type: str
    output: str
    """First output of the layer, which identifies it."""
    followers: tuple[str, ...] = ()
    """Operators after it that it is fused with or that move its integers."""
    kind: int
    """Number of the kind: regions of one kind have equal operators, attributes and shapes, and were measured once."""
    macs: int | None = None
    """Multiply-accumulates; None if they are not known."""
    alone: MeasuredRatio | None = None
    """The region as a model of its own, with conversions at its edges; None if it was not measured."""
    error: float | None = None
    """Relative RMS of the worst output's error if only this layer is quantized; None if it was not measured."""
    decision: RegionDecision
    why: str
    """The reason, such as `not faster alone: 1.02 (0.97 to 1.06)`."""


class PlacementTrial(Record):
    """A set of regions that was tried as a whole model."""

    name: str
    """The rule by which its regions were chosen."""
    regions: int
    """Number of quantized regions."""
    metrics: dict[str, float]
    """Metrics of the worst output on the samples."""
    latency: MeasuredRatio | None = None
    """Against the source; None if it was not measured."""
    outcome: str
    """The reason why it was delivered, or not."""


class Placement(Document):
    """The search of `quantize` for the layers that pay, by latency and accuracy together."""

    document: Literal["placement"] = "placement"
    format_version: int = 7
    file_name = "placement.json"
    model: str
    objective: Literal["latency"]
    backend: str
    """The runtime that was measured, as `backend` names it in recipes."""
    machine: Machine
    tolerance: dict[str, float]
    least_gain: float
    """Minimum gain of a delivered model: 0.01 is 1 %."""
    sample_count: int
    samples: tuple[str, ...] = ()
    """The first 1,000 samples: they calibrated the layers, and the sets are judged on them."""
    regions: tuple[PlacedRegion, ...]
    trials: tuple[PlacementTrial, ...]
    delivered: MeasuredRatio | None
    """The delivered model against the source, measured anew after it was chosen; None if the source was delivered."""
    ended_early: bool = False
    """True if the time was used up before all layers were measured and all sets tried: there may be one that pays."""
    digest: str = ""
    """blake3 of the measured file that was delivered; empty if the source was delivered."""
    power: Power | None = None
    """Which faults the judgement of a set would notice; None if the source was delivered."""
    notes: tuple[str, ...] = ()
    wall_s: float
