"""How far outputs agree, one table for each comparison."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.plain_text import short_name
from ndld_flow.quantities import number
from ndld_flow.records.accuracy import HIGHER_IS_BETTER, Accuracy, OutputAgreement
from ndld_flow.report.shape_words import shape_text

# Metrics people look for first; others follow in the order they were recorded.
_FIRST = ("cosine", "max_abs", "mean_abs", "max_rel", "snr_db", "mismatched")


@dataclass(frozen=True)
class Cell:
    """One metric of one output."""

    value: str
    failed: bool


@dataclass(frozen=True)
class OutputRow:
    """One output tensor."""

    output: str
    tensor: str
    """dtype and shape, such as `float32 1x1x320x320`."""
    cells: tuple[Cell | None, ...]
    """One for each metric of the table; None where this output does not have it."""
    own_tolerance: str
    """Its own bounds, where they replace the common ones."""
    failed: tuple[str, ...]


@dataclass(frozen=True)
class AccuracyView:
    """One comparison of two models."""

    step: str
    reference: str
    candidate: str
    providers: tuple[str, str]
    passed: bool
    sample_count: int
    inputs: tuple[tuple[str, str], ...]
    metrics: tuple[str, ...]
    tolerances: tuple[str, ...]
    """For each metric; empty where none was asked."""
    rows: tuple[OutputRow, ...]
    elementwise: str
    """The bound that `mismatched` counts by; empty when none was given."""


def collect_accuracy(accuracies: dict[str, Accuracy]) -> tuple[AccuracyView, ...]:
    """Every comparison of a run, in recipe order."""
    return tuple(_view(step, accuracy) for step, accuracy in accuracies.items())


def _view(step: str, accuracy: Accuracy) -> AccuracyView:
    metrics = _metric_names(accuracy)
    return AccuracyView(
        step=short_name(step),
        reference=short_name(accuracy.reference),
        candidate=short_name(accuracy.candidate),
        providers=(short_name(accuracy.provider_reference), short_name(accuracy.provider_candidate)),
        passed=accuracy.passed,
        sample_count=accuracy.sample_count,
        inputs=tuple((short_name(a), short_name(b)) for a, b in accuracy.inputs.items()),
        metrics=metrics,
        tolerances=tuple(_tolerance(accuracy, metric) for metric in metrics),
        rows=tuple(_row(output, metrics, accuracy) for output in accuracy.outputs),
        elementwise=_elementwise(accuracy.tolerance),
    )


def _bound(metric: str, value: float) -> str:
    # More is better for these; for an error, less is.
    return f"{'≥' if metric in HIGHER_IS_BETTER else '≤'} {number(value)}"


def _own_tolerance(bounds: dict[str, float]) -> str:
    """An output's own bounds in one line; empty where the common ones hold."""
    return ", ".join(f"{short_name(metric)} {_bound(metric, value)}" for metric, value in bounds.items())


def _metric_names(accuracy: Accuracy) -> tuple[str, ...]:
    recorded = dict.fromkeys(
        [metric for output in accuracy.outputs for metric in output.metrics]
        # These two are a bound on `mismatched`, not metrics.
        + [metric for metric in accuracy.tolerance if metric not in ("rtol", "atol")]
    )
    return tuple([m for m in _FIRST if m in recorded] + [m for m in recorded if m not in _FIRST])


def _tolerance(accuracy: Accuracy, metric: str) -> str:
    if metric not in accuracy.tolerance:
        return ""
    return _bound(metric, accuracy.tolerance[metric])


def _elementwise(tolerance: dict[str, float]) -> str:
    if "rtol" not in tolerance and "atol" not in tolerance:
        return ""
    atol, rtol = (number(tolerance.get(name, 0.0)) for name in ("atol", "rtol"))
    return f"mismatched: elements where |candidate - reference| > {atol} + {rtol} |reference|"


def _row(output: OutputAgreement, metrics: tuple[str, ...], accuracy: Accuracy) -> OutputRow:
    return OutputRow(
        output=short_name(output.output),
        tensor=f"{short_name(output.dtype, 40)} {shape_text(output.shape)}",
        cells=tuple(_cell(output, metric) for metric in metrics),
        own_tolerance=_own_tolerance(accuracy.output_tolerance.get(output.output, {})),
        failed=tuple(short_name(sentence, 400) for sentence in output.failed),
    )


def _cell(output: OutputAgreement, metric: str) -> Cell | None:
    if metric not in output.metrics:
        return None
    failed = any(metric in sentence for sentence in output.failed)
    return Cell(value=number(output.metrics[metric]), failed=failed)
