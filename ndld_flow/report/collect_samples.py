"""Collect the agreement of two models per sample: a small plot, and a table of the worst samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import number
from ndld_flow.base.text import short_name
from ndld_flow.records.accuracy import Accuracy, SampleAgreement, higher_is_better

_ROWS_SHOWN = 40
_DOTS_SHOWN = 2000
_METRICS_SHOWN = 4


@dataclass(frozen=True)
class SampleRow:
    """One sample; metrics are those of the worst output."""

    sample: str
    label: str
    cells: tuple[tuple[str, bool], ...]
    """(value, outside its bound), one per metric."""
    scores: tuple[str, ...]
    """Results of the user's metric, `1 -> 0`, one per name."""
    worst: bool


@dataclass(frozen=True)
class SamplesPlot:
    """One metric over all samples; positions are fractions, 0 to 1, from the left and from the bottom."""

    metric: str
    dots: tuple[tuple[float, float, bool], ...]
    """(x, y, outside its bound)"""
    bound: float | None
    worst: tuple[float, float] | None
    top: str
    bottom: str
    """Labels of the plot's edges."""


@dataclass(frozen=True)
class SamplesView:
    """All samples of a comparison."""

    metrics: tuple[str, ...]
    scores: tuple[str, ...]
    """Names of the results of the user's metric."""
    has_labels: bool
    rows: tuple[SampleRow, ...]
    """In run order, or the worst first if there are too many."""
    count: int
    plot: SamplesPlot | None


def collect_samples(accuracy: Accuracy) -> SamplesView | None:
    """Return the samples; None for a single sample, which equals its outputs, or if samples were not recorded."""
    samples = accuracy.samples
    if len(samples) < 2 and not any(one.scores_candidate for one in samples):
        return None
    metrics = _metrics(accuracy)
    scores = tuple(dict.fromkeys(name for one in samples for name in one.scores_candidate))
    telling = metrics[0] if metrics else ""
    shown = samples if len(samples) <= _ROWS_SHOWN else _worst_first(samples, telling, accuracy)[:_ROWS_SHOWN]
    return SamplesView(
        metrics=tuple(short_name(metric, 40) for metric in metrics),
        scores=tuple(short_name(name, 40) for name in scores),
        has_labels=any(one.label is not None for one in samples),
        rows=tuple(_row(one, metrics, scores, accuracy) for one in shown),
        count=len(samples),
        plot=_plot(telling, accuracy) if telling and len(samples) > 1 else None,
    )


def _metrics(accuracy: Accuracy) -> tuple[str, ...]:
    """Return the metrics, those with a bound first."""
    there = dict.fromkeys(metric for one in accuracy.samples for found in one.outputs.values() for metric in found)
    bounded = [metric for metric in accuracy.tolerance if metric in there]
    usual = [metric for metric in ("cosine", "snr_db", "max_abs") if metric in there]
    return tuple(dict.fromkeys([*bounded, *usual, *there]))[:_METRICS_SHOWN]


def worst_of(sample: SampleAgreement, metric: str) -> float | None:
    """Return the worst value over the outputs; NaN is the worst possible."""
    values = [metrics[metric] for metrics in sample.outputs.values() if metric in metrics]
    if any(map(math.isnan, values)):
        return math.nan
    return (min if higher_is_better(metric) else max)(values, default=None)


def is_broken(sample: SampleAgreement, metric: str, accuracy: Accuracy) -> bool:
    """Return whether an output exceeds its bound on this sample."""
    return any(
        _is_outside(metric, metrics[metric], accuracy.output_tolerance.get(output, accuracy.tolerance))
        for output, metrics in sample.outputs.items()
        if metric in metrics
    )


def _is_outside(metric: str, value: float, tolerance: Mapping[str, float]) -> bool:
    if metric not in tolerance:
        return False
    bound = tolerance[metric]
    return math.isnan(value) or (value < bound if higher_is_better(metric) else value > bound)


def _worst_first(samples: Sequence[SampleAgreement], metric: str, accuracy: Accuracy) -> list[SampleAgreement]:
    sign = 1 if higher_is_better(metric) else -1

    def order(sample: SampleAgreement) -> tuple[bool, float]:
        value = worst_of(sample, metric)
        if value is None:
            return True, math.inf
        return sample.sample != accuracy.worst_sample, -math.inf if math.isnan(value) else sign * value

    return sorted(samples, key=order)


def _row(sample: SampleAgreement, metrics: Sequence[str], scores: Sequence[str], accuracy: Accuracy) -> SampleRow:
    values = [worst_of(sample, metric) for metric in metrics]
    return SampleRow(
        sample=short_name(sample.sample, 120),
        label=short_name(sample.label or "", 120),
        cells=tuple(
            ("\N{EN DASH}" if value is None else number(value), is_broken(sample, metric, accuracy))
            for metric, value in zip(metrics, values, strict=True)
        ),
        scores=tuple(_score(sample, name) for name in scores),
        worst=sample.sample == accuracy.worst_sample,
    )


def _score(sample: SampleAgreement, name: str) -> str:
    reference, candidate = sample.scores_reference.get(name), sample.scores_candidate.get(name)
    told = ["\N{EN DASH}" if value is None else number(value) for value in (reference, candidate)]
    return told[0] if told[0] == told[1] else " → ".join(told)


# --- plot ---


def _plot(metric: str, accuracy: Accuracy) -> SamplesPlot | None:
    values = [worst_of(one, metric) for one in accuracy.samples[:_DOTS_SHOWN]]
    bound = accuracy.tolerance.get(metric)
    known = [value for value in (*values, bound) if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if low == high:
        return None
    margin = (high - low) * 0.08
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        """Return the position of a value; NaN is at the worse edge."""
        if not math.isfinite(value):
            return 0.0 if higher_is_better(metric) else 1.0
        return (value - low) / (high - low)

    dots = [
        ((number_ + 0.5) / len(values), place(value), is_broken(sample, metric, accuracy), sample.sample)
        for number_, (value, sample) in enumerate(zip(values, accuracy.samples, strict=False))
        if value is not None
    ]
    return SamplesPlot(
        metric=short_name(metric, 40),
        dots=tuple((x, y, broken) for x, y, broken, _ in dots),
        bound=None if bound is None else place(bound),
        worst=next(((x, y) for x, y, _, name in dots if name == accuracy.worst_sample), None),
        top=number(high - margin),
        bottom=number(low + margin),
    )
