"""Comparisons of outputs: limits, metrics, labelled sets, samples, layers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.base.declared_metrics import OF_WORST_SAMPLE, higher_is_better, metric_text
from ndld_flow.base.quantities import ABSENT, number
from ndld_flow.base.text import short_name
from ndld_flow.records.accuracy import SAME_DB, Accuracy, LabelledMetric, OutputAgreement, SampleAgreement
from ndld_flow.report.collect_divergence import DepthCurves, DepthView, bound_of, collect_depth, depth_curves
from ndld_flow.report.measured import shape_text
from ndld_flow.report.panel import Panel
from ndld_flow.report.search_outcome import is_outside
from ndld_flow.report.tables import Column, Table

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
    of_each: bool
    """The bound holds for each sample, and not for all together."""
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
    if len(samples) < 2 and not any(sample.scores_candidate for sample in samples):
        return None
    recorded = dict.fromkeys(
        metric for sample in accuracy.samples for output_metrics in sample.outputs.values() for metric in output_metrics
    )
    bounded = [metric for metric in accuracy.tolerance if metric in recorded]  # shown first
    usual = [metric for metric in ("cosine", "snr_db", "max_abs") if metric in recorded]
    metrics = tuple(dict.fromkeys([*bounded, *usual, *recorded]))[:_METRICS_SHOWN]
    scores = tuple(dict.fromkeys(name for sample in samples for name in sample.scores_candidate))
    decisive = metrics[0] if metrics else ""
    shown = samples if len(samples) <= _ROWS_SHOWN else _worst_first(samples, decisive, accuracy)[:_ROWS_SHOWN]
    return SamplesView(
        metrics=tuple(short_name(metric, 40) for metric in metrics),
        scores=tuple(short_name(name, 40) for name in scores),
        has_labels=any(sample.label is not None for sample in samples),
        rows=tuple(_sample_row(sample, metrics, scores, accuracy) for sample in shown),
        count=len(samples),
        plot=_plot(decisive, accuracy) if decisive and len(samples) > 1 else None,
    )


def worst_of(sample: SampleAgreement, metric: str) -> float | None:
    """Return the worst value over the outputs; NaN is the worst possible."""
    values = [metrics[metric] for metrics in sample.outputs.values() if metric in metrics]
    if any(map(math.isnan, values)):
        return math.nan
    return (min if higher_is_better(metric) else max)(values, default=None)


def is_broken(sample: SampleAgreement, metric: str, accuracy: Accuracy) -> bool:
    """Return whether an output exceeds a bound that holds for each sample."""
    if metric not in OF_WORST_SAMPLE:
        return False
    bounds = {output: accuracy.output_tolerance.get(output, accuracy.tolerance) for output in sample.outputs}
    return any(
        is_outside(metric, metrics[metric], bounds[output][metric])
        for output, metrics in sample.outputs.items()
        if metric in metrics and metric in bounds[output]
    )


def _worst_first(samples: Sequence[SampleAgreement], metric: str, accuracy: Accuracy) -> list[SampleAgreement]:
    sign = 1 if higher_is_better(metric) else -1

    def order(sample: SampleAgreement) -> tuple[bool, float]:
        value = worst_of(sample, metric)
        if value is None:
            return True, math.inf
        return sample.sample != accuracy.worst_sample, -math.inf if math.isnan(value) else sign * value

    return sorted(samples, key=order)


def _sample_row(
    sample: SampleAgreement, metrics: Sequence[str], scores: Sequence[str], accuracy: Accuracy
) -> SampleRow:
    values = [worst_of(sample, metric) for metric in metrics]
    return SampleRow(
        sample=short_name(sample.sample, 120),
        label=short_name(sample.label or "", 120),
        cells=tuple(
            (ABSENT if value is None else _value_text(metric, value), is_broken(sample, metric, accuracy))
            for metric, value in zip(metrics, values, strict=True)
        ),
        scores=tuple(_score(sample, name) for name in scores),
        worst=sample.sample == accuracy.worst_sample,
    )


def _score(sample: SampleAgreement, name: str) -> str:
    reference, candidate = sample.scores_reference.get(name), sample.scores_candidate.get(name)
    texts = [ABSENT if value is None else number(value) for value in (reference, candidate)]
    return texts[0] if texts[0] == texts[1] else " → ".join(texts)


# --- plot ---


def _plot(metric: str, accuracy: Accuracy) -> SamplesPlot | None:
    values = [worst_of(sample, metric) for sample in accuracy.samples[:_DOTS_SHOWN]]
    bound = accuracy.tolerance.get(metric)
    known = [value for value in (*values, bound) if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bottom, top = metric_text(metric, low), metric_text(metric, high)
    if bottom == top:  # equal, or the rounding of a cosine of 1
        return None
    margin = (high - low) * 0.08
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        """Return the position of a value; NaN is at the worse edge."""
        if not math.isfinite(value):
            return 0.0 if higher_is_better(metric) else 1.0
        return (value - low) / (high - low)

    dots = (
        ((number_ + 0.5) / len(values), place(value), is_broken(sample, metric, accuracy))
        for number_, (value, sample) in enumerate(zip(values, accuracy.samples, strict=False))
        if value is not None
    )
    return SamplesPlot(
        metric=short_name(metric, 40),
        dots=tuple(dots),
        bound=None if bound is None else place(bound),
        of_each=metric in OF_WORST_SAMPLE,
        top=top,
        bottom=bottom,
    )


# The most important metrics; others follow in recorded order.
_FIRST = (
    "slice_rms",
    "slice_max",
    "position_rms",
    "iou_loss",
    "cosine",
    "max_abs",
    "mean_abs",
    "max_rel",
    "snr_db",
    "mismatched",
)


@dataclass(frozen=True)
class OutputRow:
    """One output tensor."""

    output: str
    tensor: str
    """dtype and shape, such as `float32 1x1x320x320`."""
    cells: tuple[tuple[str, bool], ...]
    """(value, outside its bound), one per metric of the table."""
    own_tolerance: str
    """Bounds of this output that replace the common ones."""
    failed: tuple[str, ...]
    undecided: str


@dataclass(frozen=True)
class LimitRow:
    """One metric of one output against its bound."""

    output: str
    metric: str
    value: str
    bound: str
    used: float
    """Value as a part of the limit: 1 at the bound, more beyond it."""
    passed: bool
    undecided: bool
    worst_sample: str
    worst_slice: str


@dataclass(frozen=True)
class AccuracyView:
    """One comparison of two models."""

    accuracy: Accuracy
    step: str
    reference: str
    candidate: str
    arithmetic: str
    """Description of how reduced precision was computed; empty if not recorded."""
    seen: str
    """`judged on 8 samples that small did not see`; empty if no step was fitted to samples."""
    metrics: tuple[str, ...]
    tolerances: tuple[str, ...]
    """One per metric; empty if none was requested."""
    rows: tuple[OutputRow, ...]
    limits: tuple[LimitRow, ...]
    """Closest to or furthest beyond their bounds first."""
    elementwise: str
    """The elementwise bound behind `mismatched`; empty if none was given."""
    samples: SamplesView | None
    labelled: Table | None
    """The user's metrics on labelled sets."""
    labelled_failures: tuple[str, ...]
    depth: DepthView | None
    """Divergence by layer; None if only outputs were compared."""
    first_divergent: str
    """`Conv conv_3`; empty if no layer diverges."""


def collect_accuracy(accuracies: Mapping[str, Accuracy]) -> tuple[AccuracyView, ...]:
    """Return all comparisons of a run, in recipe order."""
    return tuple(_view(step, accuracy) for step, accuracy in accuracies.items())


def _view(step: str, accuracy: Accuracy) -> AccuracyView:
    recorded = dict.fromkeys(
        [metric for output in accuracy.outputs for metric in output.metrics] + list(metric_bounds(accuracy.tolerance))
    )
    metrics = tuple([m for m in _FIRST if m in recorded] + [m for m in recorded if m not in _FIRST])
    first = accuracy.first_divergent
    atol, rtol = (number(accuracy.tolerance.get(name, 0.0)) for name in ("atol", "rtol"))
    if accuracy.emulated:
        arithmetic = (
            f"stored: fp16 and bf16 tensors of the {' and the '.join(accuracy.emulated)} were rounded as stored"
        )
    else:
        arithmetic = "native: computed as the execution provider does" if accuracy.arithmetic == "native" else "stored"
    limits = [
        _limit(output, metric, bound)
        for output in accuracy.outputs
        for metric, bound in metric_bounds(accuracy.output_tolerance.get(output.output, accuracy.tolerance)).items()
        if metric in output.metrics
    ]
    return AccuracyView(
        accuracy=accuracy,
        step=short_name(step),
        reference=short_name(accuracy.reference),
        candidate=short_name(accuracy.candidate),
        arithmetic=arithmetic,
        seen=short_name(accuracy.seen.describe(accuracy.sample_count), 200) if accuracy.seen else "",
        metrics=metrics,
        tolerances=tuple(
            bound_text(metric, accuracy.tolerance[metric]) if metric in accuracy.tolerance else "" for metric in metrics
        ),
        rows=tuple(_row(output, metrics, accuracy) for output in accuracy.outputs),
        limits=tuple(sorted(limits, key=lambda row: (row.passed, -row.used))),
        elementwise=f"mismatched: elements where |candidate - reference| > {atol} + {rtol} |reference|"
        if accuracy.tolerance.keys() & {"rtol", "atol"}
        else "",
        samples=collect_samples(accuracy),
        labelled=_labelled_table(accuracy) if accuracy.labelled else None,
        labelled_failures=tuple(
            short_name(sentence, 400) for metric in accuracy.labelled for sentence in metric.failed
        ),
        depth=accuracy_depth(accuracy),
        first_divergent=short_name(f"{first.op_type} {first.node or first.tensor}") if first else "",
    )


def accuracy_depth(accuracy: Accuracy) -> DepthView | None:
    """Return the divergence by layer; None if only outputs were compared."""
    first = accuracy.first_divergent
    return collect_depth(
        {short_name(accuracy.candidate, 40): accuracy.layers},
        kept=lambda layer: False,
        first=first.tensor if first else "",
        bound=bound_of(accuracy.divergence_bounds),
    )


def bound_text(metric: str, value: float) -> str:
    """Return `≥ 0.999` for a metric of which more is better, such as cosine, otherwise `≤ 0.1`."""
    return f"{'≥' if higher_is_better(metric) else '≤'} {metric_text(metric, value)}"


def metric_bounds(tolerance: Mapping[str, float]) -> dict[str, float]:
    """Return metric -> bound, without `rtol` and `atol`: these two are a bound on `mismatched`, not metrics."""
    return {metric: bound for metric, bound in tolerance.items() if metric not in ("rtol", "atol")}


def _row(output: OutputAgreement, metrics: Iterable[str], accuracy: Accuracy) -> OutputRow:
    own = accuracy.output_tolerance.get(output.output, {})
    return OutputRow(
        output=short_name(output.output),
        tensor=f"{short_name(output.dtype, 40)} {shape_text(output.shape)}",
        cells=tuple(
            (_value_text(metric, output.metrics[metric]), _is_broken(output, metric))
            if metric in output.metrics
            else (ABSENT, False)
            for metric in metrics
        ),
        own_tolerance=", ".join(f"{short_name(metric)} {bound_text(metric, bound)}" for metric, bound in own.items()),
        failed=tuple(short_name(sentence, 400) for sentence in output.failed),
        undecided=output.undecided,
    )


def _value_text(metric: str, value: float) -> str:
    return "∞" if metric.endswith("_db") and value >= SAME_DB else metric_text(metric, value)


def _is_broken(output: OutputAgreement, metric: str) -> bool:
    whole_word = re.compile(rf"(?<!\w){re.escape(metric)}(?!\w)")  # `snr_db` must not match `psnr_db`
    return any(whole_word.search(sentence) for sentence in output.failed)


# --- limits ---


def _limit(output: OutputAgreement, metric: str, bound: float) -> LimitRow:
    value = output.metrics[metric]
    used = used_part(metric, value, bound)
    undecided = bool(output.undecided) and used > 1
    return LimitRow(
        output=short_name(output.output),
        metric=short_name(metric, 40),
        value=_value_text(metric, value),
        bound=bound_text(metric, bound),
        used=used,
        passed=not undecided and not _is_broken(output, metric),
        undecided=undecided,
        worst_sample=short_name(output.worst_samples.get(metric, ""), 80),
        worst_slice=short_name(output.worst_slices.get(metric, ""), 60),
    )


def used_part(metric: str, value: float, bound: float) -> float:
    """Return a value as a part of its limit: 1 at the bound, infinite for NaN or if nothing is allowed.

    For a cosine or a share of agreement, the distance from 1 is compared; for decibels, the corresponding noise.
    """
    if math.isnan(value):
        return math.inf
    if metric.endswith("_db"):
        return 10 ** min(20.0, (bound - value) / 20)
    off, allowed = (1 - value, 1 - bound) if higher_is_better(metric) else (value, bound)
    if off <= 0:
        return 0.0
    return off / allowed if allowed > 0 else math.inf


# --- labelled sets ---

_BOUND_WORDS = {"min": "at least {}", "max": "at most {}", "drop": "may drop by {}", "rise": "may rise by {}"}


def _labelled_table(accuracy: Accuracy) -> Table:
    columns = (
        Column("Labelled set", "name"),
        Column(short_name(accuracy.reference), "number", number),
        Column(short_name(accuracy.candidate), "number", number),
        Column("Change"),
        Column("Bound"),
        Column("Outcome", "outcome"),
    )
    rows = tuple(
        (
            short_name(metric.name, 80),
            metric.reference,
            metric.candidate,
            _change(metric),
            ", ".join(_labelled_bound(name, value) for name, value in metric.bounds.items()) or "any",
            "failed" if metric.failed else "passed" if metric.bounds else "",
        )
        for metric in accuracy.labelled
    )
    return Table(columns, rows, frozenset((row, 2) for row, metric in enumerate(accuracy.labelled) if metric.failed))


def _change(metric: LabelledMetric) -> str:
    if metric.drop == 0:
        return "as before"
    relative = f" ({abs(metric.drop / metric.reference):.1%})" if metric.reference else ""
    return f"{'drops' if metric.drop > 0 else 'rises'} by {number(abs(metric.drop))}{relative.replace('%', ' %')}"


def _labelled_bound(name: str, value: float) -> str:
    words = _BOUND_WORDS.get(name.removeprefix("relative_"))
    if words is None:
        return f"{short_name(name, 40)} {number(value)}"
    return words.format(f"{100 * value:.3g} %" if name.startswith("relative") else number(value))


def depths_of(views: tuple[AccuracyView, ...]) -> list[DepthCurves | None]:
    """Return the layers of each comparison."""
    return [depth_curves(view.depth) if view.depth else None for view in views]


PANEL = Panel("Accuracy", lambda documents: collect_accuracy(documents.of(Accuracy)), after="precision", data=depths_of)
