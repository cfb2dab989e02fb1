"""The results of comparing profiles, and of comparing several builds of one engine."""

from __future__ import annotations

import math
import statistics
from typing import Literal

from ndld_flow.base.declared_metrics import Better
from ndld_flow.records.document import Document, Record, Time
from ndld_flow.records.measurement import Circumstance
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.noise import PairedRounds

Verdict = Literal["improved", "regressed", "unchanged", "inconclusive", "incomparable"]
MatchMethod = Literal["nodes", "weights", "names", "structure", "out of order", "swapped", "unmatched"]
"""The best evidence of a match. `nodes` are those of one model that both layers run; `structure` is kinds, shapes and
the data flow."""
NOT_APPLICABLE = "n/a"
"""Value of a condition that does not apply to a profile, such as the GPU driver without a GPU."""
NOT_RECORDED = "not recorded"
"""Displayed text for an empty value."""


class Subject(Record):
    """A compared subject: a run, a profile file, a folder of exports."""

    label: str
    """Its name in the comparison; unique."""
    location: str
    """Its location, as given."""
    kind: Literal["run", "profile", "trtexec", "trex", "onnxruntime"]
    run_id: str = ""
    measured_at: Time | None = None


class Difference(Record):
    """A condition that differs between profiles, or was not recorded for all."""

    circumstance: Circumstance
    detail: str
    """The detail that differs, such as `threads` or `onnxruntime-gpu`."""
    values: tuple[str, ...]
    """One for each compared profile; empty if it was not recorded, `n/a` where it does not apply."""
    forbids: bool
    """True if verdicts are invalid unless the user allows this condition by name."""
    allowed: bool = False
    """True if the user has allowed it."""


class ComparedMetric(Record):
    """One metric of all compared profiles."""

    metric: str
    """`latency.median`, `latency.min`, `load`, `memory.peak`, `layers.sum`, `model.bytes`, ..."""
    unit: str = ""
    better: Better = "lower"
    values: tuple[float | None, ...]
    """One for each compared profile; None if one has none."""
    runs: tuple[tuple[float, ...], ...] = ()
    """The value of each process run, for each compared profile; empty for exact values."""


class MetricVerdict(Record):
    """One metric of one compared profile against another."""

    metric: str
    base: int
    """Position among the compared profiles."""
    candidate: int
    verdict: Verdict
    ratio: float
    """Candidate over base."""
    base_value: float
    """The value from which the ratio was computed: for paired runs the median pair, else the medians."""
    candidate_value: float
    low: float
    """95 % interval of the ratio; equal to it for exact values, 0 where it is not known."""
    high: float
    """Its upper end; infinite where it is not known: for single runs without learned noise."""
    is_assumed: bool = False
    """True if the verdict, whose interval is unknown, rests on an assumed spread of single runs."""
    threshold: float
    """Relative difference that counts."""
    floor: float = 0.0
    """Absolute difference that counts, in the metric's unit."""
    why: str
    """The reason, in one sentence."""
    identical: bool = False
    """Both ran the same artifact with the same settings, so that any difference is noise."""
    clock: Literal["", "cpu", "wall"] = ""
    """The clock of the rounds that decided; empty if the profiles' process runs did, by wall time."""

    @property
    def interval_is_known(self) -> bool:
        """False if nothing is known of the spread: `low` and `high` are 0 and infinite."""
        return (self.low, self.high) != (0.0, math.inf)


class LayerRow(Record):
    """Layers of the compared profiles that do the same work; one row of the layer table.

    A fused layer corresponds to several layers of another profile, so each profile may have several layers here.
    """

    layers: tuple[tuple[int, ...], ...]
    """For each compared profile, positions in its `layers`; empty if it has none."""
    methods: tuple[MatchMethod, ...]
    """For each compared profile, how its layers were matched; the row's first profile has the best method."""
    confidence: float
    """0 to 1, of the weakest link; 1 for a row of only one profile."""
    confidences: tuple[float, ...]
    """For each compared profile, the probability that its layers do the work of the row's first profile, which has the
    best of the others'."""

    def confidence_between(self, first: int, second: int) -> float:
        """Return the probability that the layers of two profiles do the same work, judged by the first profile."""
        return min(self.confidences[first], self.confidences[second])


class LayerVerdict(Record):
    """One row of one compared profile against the base. It is advisory: gates do not use it."""

    row: int
    candidate: int
    verdict: Verdict
    ratio: float
    p_value: float | None = None
    """p-value of Welch's t-test on the logarithms of the runs' medians; None with fewer than two runs per side."""
    q_value: float | None = None
    """After Benjamini and Hochberg, over all rows of this candidate."""


class Coverage(Record):
    """The share of a compared profile's layer time that has a partner in the base."""

    matched_ms: float
    unmatched_ms: float
    matched_share: float
    """0 to 1."""
    by_method: dict[MatchMethod, float]
    """Milliseconds by method of matching."""


class ProfileComparison(Record):
    """Profiles of one name, one of each subject that has it. The first is the base."""

    name: str
    """The step's name, or the profile's label."""
    subjects: tuple[int, ...]
    """Positions in `Comparison.subjects`; the first is the base. Other positions here count within this tuple."""
    steps: tuple[str, ...]
    """The step that each profile came from; empty for a file."""
    differences: tuple[Difference, ...]
    metrics: tuple[ComparedMetric, ...]
    decided_by: str
    """The metric whose verdict is the profile's."""
    verdicts: tuple[MetricVerdict, ...]
    """Every metric, for every ordered pair, so that any profile can be the base."""
    rows: tuple[LayerRow, ...]
    """In the base's order of execution, layers of others where they ran."""
    layer_verdicts: tuple[LayerVerdict, ...]
    """Against the base."""
    coverage: tuple[Coverage | None, ...]
    """For each compared profile against the base; None for the base and without layers."""
    rounds: PairedRounds | None = None
    """Rounds in which the two alternated pass by pass. If there are any, they decide `latency.median`,
    `latency.min` and `throughput`, and the profiles' own process runs the rest."""
    rounds_missing: str = ""
    """The reason why there are no rounds although they were requested."""
    graphs: GraphChange | None = None
    """The graphs that ran, of the base and of the first candidate: profiles in private environments keep them."""
    graphs_missing: str = ""
    """The reason why they are not known although a profile is of a private environment."""

    @property
    def deciding(self) -> tuple[MetricVerdict, ...]:
        """The deciding verdicts: for every candidate, that of the deciding metric against the base."""
        return tuple(verdict for verdict in self.verdicts if verdict.base == 0 and verdict.metric == self.decided_by)

    def is_of_rounds(self, metric: str) -> bool:
        """Return whether a metric is that of the rounds, not of the profiles, which were measured at another time."""
        return any(verdict.clock and verdict.metric == metric for verdict in self.verdicts)


class ComparisonGate(Record):
    """A gate on a comparison, such as `latency.median <= +5 %`, for one candidate."""

    gate: str
    name: str
    """Name of the profile comparison."""
    candidate: int
    """Position in that comparison."""
    outcome: Literal["passed", "failed", "inconclusive", "incomparable"]
    why: str

    @property
    def text(self) -> str:
        """The gate with its outcome and number: gate `latency.median <= +5 %` failed (+9 %)."""
        return f"gate `{self.gate}` {self.outcome} ({self.why})"


class Comparison(Document):
    """Two or more subjects, compared profile by profile, by `compare_profiles` or the verb `compare`."""

    document: Literal["comparison"] = "comparison"
    format_version: int = 5
    file_name = "comparison.json"
    subjects: tuple[Subject, ...]
    """The first is the base."""
    profiles: tuple[ProfileComparison, ...]
    left_out: tuple[str, ...] = ()
    """Sentences about profiles that had no partner."""
    gates: tuple[ComparisonGate, ...] = ()
    when_undecided: Literal["inconclusive", "pass", "fail"] = "inconclusive"
    """The effect of an undecided gate on the step that compares."""
    noise: str = ""
    """Description of the learned noise that was used; empty for none."""
    geometric_mean_ratio: float | None = None
    """Mean ratio of the deciding metric, last subject against the base; None for fewer than two profiles."""
    verdict: Verdict
    """The worst over profiles and candidates."""
    why: str


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
    """True if it read timings from a cache: it then has the tactics of earlier builds."""
    latency_ms: float | None = None
    """Median; None if it was not measured."""


class ChangedLayer(Record):
    """Layers of the builds that do the same work and differ."""

    name: str
    """Name in the first build that has it; several are joined by ` + `."""
    type: str
    onnx_nodes: tuple[str, ...]
    change: Change
    """The largest change between any two builds: `layers`, then `format`, then `tactic`."""
    built: tuple[str, ...]
    """For each build, its tactics, or its other form; empty if it has no such layer."""
    variants: int
    """Number of different outcomes among the builds."""
    time_share: float | None = None
    """Share of the time of all layers, mean over the builds, 0 to 1; None if they were not all measured."""


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
        """(largest - smallest) / median; 0 if the median is 0."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


class TacticChurn(Record):
    """Several builds of one model with the same settings."""

    builds: tuple[RebuiltEngine, ...]
    basis: Literal["engines as built", "engines as measured"]
    """Source of the layers: the builder's report, or the engine when it ran."""
    tells_tactics: bool
    """True if any layer has a tactic: otherwise only different layers and formats can be detected."""
    row_count: int
    """Number of layers, with corresponding layers of several builds counted once."""
    changed: tuple[ChangedLayer, ...]
    """Slowest first, if measured; else in order of execution."""
    layer_share: float
    """Layers that changed, of all layers of all builds, 0 to 1."""
    time_share: float | None
    """Share of the changed layers in the time of all layers, mean over the builds; None if not all were measured."""
    spreads: tuple[Spread, ...]

    @property
    def different_engines(self) -> int:
        """Number of engines that differ in at least one byte."""
        return len({build.engine_digest for build in self.builds})
