"""Healthy conversions that the accuracy check refuses, and planted faults that it passes, at default settings.

Prints, asserts nothing: `python -m tests.benchmarks.bench_accuracy [--only nudenet] [--samples 1]`. Each output is
judged as `check_accuracy` judges it, and for comparison by cosine 0.999 and SNR 25 dB over whole outputs.

A fault in the weights counts where it changes an output by 10 % of its RMS at least, and by three times as much as FP16
does: others leave nothing to be seen on these samples, and are counted apart. Faults of channels are planted in those
that the samples activate; the others are reported as not seen.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.agreement import Agreement, Yardstick, find_yardstick
from ndld_flow.accuracy.tolerance import Tolerance, outside
from ndld_flow.models.tensors import Array
from tests.support import accuracy_cases as cases
from tests.support.accuracy_cases import Outputs, Subject

WHOLE = Tolerance(slices="off", cosine=0.999, snr_db=25.0)


@dataclass
class Counts:
    """Counts of one method's verdicts over all candidates."""

    name: str
    tolerance: Tolerance
    false_alarms: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def take(self, label: str, outputs: Judged, healthy: bool) -> None:
        passed = not outputs.failed(self.tolerance)
        if healthy != passed:
            (self.false_alarms if healthy else self.misses).append(label)


@dataclass(frozen=True)
class Judged:
    """Outputs of a candidate, measured against the subject's."""

    metrics: dict[str, dict[str, float]]
    kinds: dict[str, Yardstick]
    unlike: bool
    """Another shape, or NaN and infinity where the subject has none."""

    def failed(self, tolerance: Tolerance) -> bool:
        return self.unlike or any(
            outside(metrics, tolerance.bounds(self.kinds[name].kind)) for name, metrics in self.metrics.items()
        )

    @property
    def effect(self) -> float:
        """The largest relative RMS error over the outputs."""
        return max((metrics.get("relative_rms", 0.0) for metrics in self.metrics.values()), default=0.0)

    @property
    def used(self) -> float:
        """Return the used share of the bounds on slices, 1 at the bound."""
        bounds = Tolerance().bounds()
        used = [
            value / bounds[name] for metric in self.metrics.values() for name, value in metric.items() if name in bounds
        ]
        return max(used, default=0.0)


def judge(reference: Sequence[Outputs], candidate: Sequence[Outputs], kinds: dict[str, Yardstick]) -> Judged:
    result = {name: Agreement(None, kind) for name, kind in kinds.items()}
    unlike = False
    for mine, theirs in zip(reference, candidate, strict=True):
        for name, array in mine.items():
            if name not in theirs or theirs[name].shape != array.shape:
                return Judged({}, kinds, True)
            result[name].add(array, theirs[name])
    unlike = any(item.only_candidate_nonfinite or item.only_reference_nonfinite for item in result.values())
    return Judged({name: item.metrics() for name, item in result.items()}, kinds, unlike)


def compare(subject: Subject, folder: Path, ways: Sequence[Counts]) -> tuple[int, int, int, float]:
    """Judge everything that is made of one subject; return (healthy, faults, faults without effect, bound used)."""
    reference = subject.run()
    kinds = {name: find_yardstick(partial(_values_of, reference, name)) for name in reference[0]}
    healthy = faults = invisible = 0
    used = rounding = 0.0
    for candidate in cases.conversions(subject, folder):
        judged = judge(reference, subject.run(candidate.path, candidate.level), kinds)
        broken = candidate.label.startswith("fp16") and subject.name in cases.OVERFLOWS_IN_FP16
        for way in ways:
            way.take(f"{subject.name}: {candidate.label}", judged, not broken)
        healthy, faults = healthy + (not broken), faults + broken
        used = used if broken else max(used, judged.used)
        rounding = max(rounding, judged.effect if candidate.label.startswith("fp16") and not broken else 0.0)
    for label, judged in _faults(subject, reference, kinds, folder):
        if "weights" in label and not judged.unlike and judged.effect < max(0.10, 3 * rounding):
            invisible += 1
            continue
        faults += 1
        for way in ways:
            way.take(f"{subject.name}: {label}", judged, False)
    return healthy, faults, invisible, used


def _values_of(samples: Sequence[Outputs], name: str) -> list[Array]:
    return [outputs[name] for outputs in samples]


def _faults(
    subject: Subject, reference: Sequence[Outputs], kinds: dict[str, Yardstick], folder: Path
) -> Iterator[tuple[str, Judged]]:
    for candidate in cases.broken_weights(subject, folder):
        yield candidate.label, judge(reference, subject.run(candidate.path), kinds)
    for name in reference[0]:
        samples = [item[name] for item in reference]
        axis = subject.axes.get(name)
        for label, arrays in cases.broken_outputs(samples, axis, kinds[name]):
            wrong = [{**item, name: array} for item, array in zip(reference, arrays, strict=True)]
            yield f"{name}: {label}", judge(reference, wrong, kinds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one model, by its name")
    parser.add_argument("--samples", type=int, help="use this many samples instead of all, 4 to 6")
    chosen = parser.parse_args()
    ways = (Counts("by slices", Tolerance()), Counts("whole outputs, cosine and SNR", WHOLE))
    totals = np.zeros(3, int)
    with tempfile.TemporaryDirectory() as name:
        for subject in cases.subjects(Path(name)):
            if chosen.only not in (None, subject.name):
                continue
            folder = Path(name, f"{subject.name} conversions")
            folder.mkdir()
            *counts, used = compare(replace(subject, feeds=subject.feeds[: chosen.samples]), folder, ways)
            totals += counts
            print(f"{subject.name:20} {counts[0]:3} healthy, at most {used:5.1%} of a bound; {counts[1]:3} faults")
    print(f"\n{totals[0]} healthy conversions, {totals[1]} faults; {totals[2]} faults in weights without an effect")
    for way in ways:
        print(f"{way.name}: {len(way.false_alarms)} false alarms, {len(way.misses)} missed faults")
        for label in (*way.false_alarms, *(way.misses if way is ways[0] else ())):
            print(f"    {label}")


if __name__ == "__main__":
    main()
