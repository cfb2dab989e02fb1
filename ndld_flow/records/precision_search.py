"""Nodes that must keep a higher precision, with the evidence and the trials of the search."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.document import Document, Record
from ndld_flow.records.power import Power

Cause = Literal["overflow", "underflow", "range", "sensitivity", "unsupported"]
"""`overflow`: values beyond the format's largest. `underflow`: nonzero values that become 0 or subnormal where it
matters. `range`: weights or statistics that do not fit the format, or a scale that has to span too large a range.
`sensitivity`: every value fits, but rounding is too coarse. `unsupported`: the node cannot have the precision."""


class Evidence(Record):
    """One measured value of a node, with its limit."""

    cause: Cause
    sentence: str
    """`its input W.var has 12 of 64 values beyond 65504 (largest 9.8e7)`."""
    tensor: str = ""
    value: float | None = None
    limit: float | None = None
    """Limit of the format, with which `value` is compared."""


class KeptNode(Record):
    """One node that stays at higher precision."""

    node: str
    op_type: str
    outputs: tuple[str, ...]
    """Names of its output tensors: a node is identified by the first of them, as names may be empty or repeat."""
    cause: Cause
    evidence: tuple[Evidence, ...]
    """Most important first; never empty."""
    without: dict[str, float] = {}
    """Metrics of the worst output if all kept nodes except this one are kept."""


class Trial(Record):
    """One set of nodes that was tried."""

    number: int
    phase: Literal["whole", "suspects", "op_types", "regions", "nodes", "shrink", "verify"]
    what: str
    """`without Softmax`, `nodes 120 to 180`, ..."""
    kept_count: int
    kept: tuple[int, ...]
    """Positions, in order of execution, of the nodes kept."""
    metrics: dict[str, float]
    """Metrics of the worst output; empty if the model did not run. `nonfinite` counts values that are NaN or infinite
    in only one of candidate and reference; other metrics cover those that are finite in both."""
    passed: bool
    wall_s: float
    remembered: bool = False
    """Taken from an earlier search that did not finish."""
    trouble: str = ""
    """The reason why it could not run."""


class PrecisionSearch(Document):
    """A search of `find_precision` for the nodes that a reduced precision breaks."""

    document: Literal["precision search"] = "precision search"
    format_version: int = 6
    file_name = "precision.json"
    model: str
    """Name of the step, or `source`, whose model was searched."""
    precision: Literal["fp16", "bf16", "int8"]
    kept_precision: str = "fp32"
    tolerance: dict[str, float]
    sample_count: int
    samples: tuple[str, ...] = ()
    """The first 1,000 samples. The search ran on them, int8 was calibrated on them, and the verdict is from them."""
    inputs: dict[str, str]
    """Input -> origin of its values."""
    settings: dict[str, bool | int | float | str] = {}
    """Settings of the conversion, such as `keep_io`: a later step that uses the result needs the same."""
    node_count: int
    candidate_count: int
    """Nodes that could have the precision."""
    always_kept: dict[str, str] = {}
    """Node -> reason why it always keeps the higher precision (no kernel, shape computation, sensitive operator)."""
    kept: tuple[KeptNode, ...]
    passed: bool
    """True if the tolerance is met with the kept nodes."""
    ended_early: bool = False
    """True if the time or the number of trials was used up: there may be a set that meets the tolerance."""
    metrics_whole: dict[str, float]
    """Metrics of the worst output, with every candidate at the reduced precision; empty if that did not run."""
    metrics_found: dict[str, float]
    """Metrics of the worst output, with the kept nodes."""
    layers_whole: tuple[LayerDivergence, ...] = ()
    """With every candidate at the reduced precision."""
    layers_found: tuple[LayerDivergence, ...] = ()
    """With the kept nodes. The ranges, which are the reference's, are in `layers_whole`."""
    first_divergent: str = ""
    """The first layer, in order of execution, beyond the tolerance with everything reduced; empty if none is."""
    trials: tuple[Trial, ...]
    kept_macs_share: float | None = None
    """Fraction of the model's multiply-accumulates in the kept nodes."""
    wall_s: float
    """Seconds of the search, without those of `power`."""
    power: Power | None = None
    """Which faults a trial would notice; None if the tolerance is not met, or nothing becomes reduced."""
    notes: tuple[str, ...] = ()

    @property
    def is_fitted(self) -> bool:
        """True if the samples decided what is kept, or calibrated it, so that others may be worse."""
        return bool(self.kept) or self.precision == "int8"
