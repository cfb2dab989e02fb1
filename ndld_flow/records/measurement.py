"""Metrics, latencies and the machine of a measurement. Pure Python, so that reports can be drawn on any laptop."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.document import Record

SIZES_ASSUMED = "with 1 for each size that nothing sets"
"""Part of a note on an input whose free sizes were taken as 1."""
DISTORTED = "set `resize:` to letterbox, crop or stretch"
"""Part of a note on an input whose images are stretched although nothing requests it."""
RATE_UNKNOWN = "is used as it is: set `rate:` to the model's"
"""Part of a note on an input whose audio may have another sample rate than the model's."""
POOR_CALIBRATION = "set `data` to representative files"
"""Part of a note on a quantization whose ranges were measured on few, equal or generated samples."""
NOT_SMALLER = "the result is not smaller than its source"
"""Part of a note on a quantized model."""
ANOTHER_ORDER = "the outputs are in another order, which matters to whoever reads them by position"
"""Part of a note on a comparison of two models."""
FIXED_SIZES = "the candidate fixes sizes that the reference leaves free"
"""Part of a note on a comparison of two models: a warning, unless the recipe itself fixed them."""
FEWEST_ROUNDS = 4
"""Minimum number of rounds for a decision: a few processes may agree by chance."""
Circumstance = Literal[
    "hardware", "cpus", "driver", "versions", "clocks", "power", "profiler", "timing", "batch", "inputs", "provider",
    "threads", "options", "model",
]  # fmt: skip
"""`batch`: the shapes of the inputs; `inputs`: their values; `timing`: the interval that a latency measures."""
_WARNINGS = (SIZES_ASSUMED, DISTORTED, RATE_UNKNOWN, POOR_CALIBRATION, NOT_SMALLER, ANOTHER_ORDER)
_MOST_CPUS = 1e6
"""Larger numbers, and NaN, are none that were measured."""
Allowance = Circumstance | Literal["unknown"]
"""A condition that may differ or be unknown, or `unknown`: every condition that was not recorded."""

BUSY = 0.1
"""Share of the CPUs used by others from which passes are interrupted, and a gain in wall time may be another one on a
quiet machine: threads that wait for each other, and those that spin, lose most of it."""


def cpus_used_by_others(during: JsonValue) -> float:
    """Return the number of CPUs that other processes and the host used during a measurement, by the conditions that it
    recorded; 0 if it did not."""
    named = during if isinstance(during, dict) else {}
    cpus = [named.get(name) for name in ("cpus_used_by_others", "cpus_taken_by_host")]
    return sum(float(each) for each in cpus if isinstance(each, int | float) and abs(each) < _MOST_CPUS)


def is_warning(note: str) -> bool:
    """Return True for a note that terminals and reports show as a warning: the values of an input were assumed, or a
    result is doubtful."""
    return any(part in note for part in _WARNINGS)


class Metric(Record):
    """A number that gates and reports may name, such as `latency.median` in ms."""

    value: float
    unit: str = ""
    """`ms`, `bytes`, `1/s`; empty for a count or a ratio."""


class Machine(Record):
    """Description of a machine, which must match before two measurements may be compared. Unknown strings are empty."""

    system: str = ""
    architecture: str = ""
    cpu: str = ""
    cpu_count: int | None = None
    """None if it is unknown, as is memory."""
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    driver: str = ""
    python: str = ""

    @property
    def hardware(self) -> tuple[str, int | None, tuple[str, ...]]:
        """The hardware that decides how long work takes."""
        return self.cpu, self.cpu_count, self.gpus


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return trtexec's percentile: the sorted sample at n - 1 - int((100 - percent) / 100 * n), at least the first.

    Therefore p99 of fewer than 100 samples is the largest one.
    """
    ordered = sorted(samples)
    # (100 - p) * n / 100 and not (1 - p / 100) * n, which is 0.99... for p90 of 10 samples.
    return ordered[max(len(ordered) - 1 - int((100 - percent) * len(ordered) / 100), 0)]


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "p90": lambda samples: percentile(samples, 90),
    "p95": lambda samples: percentile(samples, 95),
    "p99": lambda samples: percentile(samples, 99),
}
"""The statistics of the passes of one process run, by the last word of their metrics."""


class LatencySummary(Record):
    """Statistics of the samples of one latency.

    Passes of one process are correlated, so the process run is the unit: of several runs, each statistic is the median
    of the runs' values. The minimum of five runs is thus the fastest pass of a typical run, however many runs there
    were, and comparisons, which need a value for each run, have the same number.
    """

    sample_count: int
    median_ms: float
    median_pass: int
    """Index of the pass that took the median time, or of the slowest pass that took less."""
    mean_ms: float
    min_ms: float
    max_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    std_ms: float
    """Standard deviation (n - 1) of all samples, so that it includes the differences between runs; 0 for one sample."""
    cov: float
    """Coefficient of variation of all samples: their standard deviation over their mean."""

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> "LatencySummary":
        """Summarize at least one sample. Raises ValueError for none."""
        return cls.of_runs([samples_ms])

    @classmethod
    def of_runs(cls, runs_ms: Sequence[Sequence[float]]) -> "LatencySummary":
        """Summarize process runs with at least one sample between them. Raises ValueError for none."""
        runs_ms = [run for run in runs_ms if run]
        samples_ms = [sample for run in runs_ms for sample in run]
        if not samples_ms:
            raise ValueError("no samples to summarize")
        mean = statistics.fmean(samples_ms)
        # Not statistics.stdev: its exact fractions take 100 times as long and change no displayed digit.
        squares = math.fsum((sample - mean) ** 2 for sample in samples_ms)
        std = math.sqrt(squares / (len(samples_ms) - 1)) if len(samples_ms) > 1 else 0.0
        ordered = [sorted(run) for run in runs_ms]  # each statistic would sort anew what is not in order
        typical = {word: statistics.median(map(reduce, ordered)) for word, reduce in STATISTICS.items()}
        by_latency = sorted(range(len(samples_ms)), key=samples_ms.__getitem__)
        count = bisect_right(by_latency, typical["median"], key=samples_ms.__getitem__)
        return cls(
            sample_count=len(samples_ms),
            median_pass=by_latency[max(count - 1, 0)],
            std_ms=std,
            cov=std / mean if mean else 0.0,
            **{f"{word}_ms": value for word, value in typical.items()},
        )

    @property
    def throughput_per_s(self) -> float:
        """Passes per second at the median latency."""
        return 1e3 / self.median_ms if self.median_ms else 0.0
