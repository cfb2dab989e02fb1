"""The record of `optimize`: the model to ship, what it gains and costs, and why the others lost."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ndld_flow.base.quantities import counted, ratio_change, seconds
from ndld_flow.base.text import short_name
from ndld_flow.records.document import VERSIONS, Document, Record
from ndld_flow.records.measurement import Metric

OPTIMIZATION_RECORD = "optimization.json"
"""Name of the record, beside the recipes and in the folder of the search."""
VariantOutcome = Literal["delivered", "slower", "failed", "not right", "not faster", "not right on held-out data"]
"""`slower`: others were faster in the search; `failed`: it could not be made or run; `not right`: a condition failed in
the search; `not faster`: at 95 % confidence it is not 1 % faster than the source; `delivered`."""


class TriedVariant(Record):
    """A variant that was tried."""

    name: str
    runtime: str
    outcome: VariantOutcome
    why: str = ""
    latency: Metric | None = None
    """The objective of the search; None if it was not measured."""


class Speed(Record):
    """The latency of a model divided by that of the source, measured in alternating passes."""

    ratio: float
    low: float
    high: float
    """The ends of the interval of 95 % confidence."""
    clock: str
    """`cpu` or `wall`: the clock of the rounds that decided; empty if process runs did."""


class Optimization(Document):
    """The model that `optimize` delivers, with the reasons."""

    document: Literal["optimization"] = "optimization"
    format_version: int = VERSIONS["optimization"]
    model: str
    target: str
    """`onnxruntime`, `openvino` or `any`."""
    keep: tuple[str, ...] = ()
    """The conditions; empty for the judgement of `check_accuracy`."""
    search_samples: int
    held_samples: int
    random_inputs: bool
    """True without data: accuracy is only as good as random inputs."""
    variants: tuple[TriedVariant, ...]
    not_tried: tuple[str, ...] = ()
    """Sentences on what was not tried, and why."""
    stopped_because: str
    """The reason why the search ended, such as `all 5 points tried`, a time limit, or Ctrl-C."""
    faster: bool
    """False if nothing is faster than the source at 95 % confidence: then the source is delivered."""
    delivered: str
    """The variant that is delivered."""
    runtime: str
    """The value of `runtime:` with which it was measured."""
    threads: int | None = None
    """The number of threads, if it was a part of the search."""
    digest: str
    """The digest of the delivered model, which is the measured one."""
    size_bytes: int
    source_bytes: int
    exported: tuple[str, ...] = ()
    """Paths of the delivered files."""
    speed: Speed | None = None
    """None for the source itself."""
    accuracy: str = ""
    """The judgement on held-out samples, with the worst slice; empty for the source itself."""
    worst_sample: str = ""
    metrics: dict[str, Metric] = {}
    """Metrics on held-out samples."""
    recipe: str
    """Path of the recipe that reproduces the result."""
    command: str
    """The command that does."""
    run: str
    """`RECIPE/ID` of the run that proved the result."""
    sweep: str = ""
    """`RECIPE/ID` of the search; empty if it was interrupted."""
    report: str = ""
    """Path of the report of the search, or of the run if there is none."""
    started_at: datetime
    wall_s: float

    @property
    def exit_code(self) -> int:
        """0: the delivered model is right, and not slower than the source."""
        return 0

    def conclude(self) -> tuple[str, ...]:
        """Return five lines: what to ship, its gain, its cost, why others lost, and how to reproduce it."""
        return self._ship(), self._gain(), self._cost(), self._losers(), f"Reproduce it: {self.command}"

    def _ship(self) -> str:
        where = short_name(self.exported[0]) if self.exported else "the source itself" if not self.faster else self.run
        sizes = f"{self.size_bytes / 1e6:.3g} MB" + (
            "" if self.is_source else f", source {self.source_bytes / 1e6:.3g} MB"
        )
        threads = f" with {counted(self.threads, 'thread')}" if self.threads else ""
        return f"Ship {where}: {self.delivered}, for {self.runtime}{threads} ({sizes})"

    @property
    def is_source(self) -> bool:
        """Return whether the source itself is delivered, in any runtime."""
        return self.delivered.partition(",")[0] == "source"

    def _gain(self) -> str:
        if self.speed is None or not self.faster:
            return "Nothing pays: no variant is right and at least 1 % faster than the source at 95 % confidence"
        clock = {"cpu": "CPU time", "wall": "wall time", "": "wall time"}[self.speed.clock]
        ends = f"{1 / self.speed.high:.2f}x to {1 / self.speed.low:.2f}x"
        change = ratio_change(self.speed.ratio)
        return (
            f"{1 / self.speed.ratio:.2f}x as fast as the source ({ends} at 95 % confidence; {clock}; latency {change})"
        )

    def _cost(self) -> str:
        if self.is_source and not self.speed:
            return "No cost in accuracy: it is the source"
        held = f"{counted(self.held_samples, 'held-out sample')}{' of random inputs' if self.random_inputs else ''}"
        sample = (
            f"; worst sample {short_name(self.worst_sample, 100)}"
            if self.worst_sample and self.worst_sample not in self.accuracy
            else ""
        )
        return f"On {held}: {self.accuracy}{sample}"

    def _losers(self) -> str:
        lost = [
            f"{each.name}: {each.outcome}{f' ({short_name(each.why, 80)})' if each.why else ''}"
            for each in self.variants
            if each.outcome != "delivered"
        ]
        return f"Tried in {seconds(self.wall_s)} ({self.stopped_because}): {'; '.join(lost) or 'nothing else'}"
