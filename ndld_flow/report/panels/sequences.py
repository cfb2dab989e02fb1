"""Accuracy over sequences: a table of the outputs, and a chart of their errors at each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import ABSENT, count, number
from ndld_flow.base.text import short_name
from ndld_flow.records.accuracy import Accuracy, SequenceAgreement, StepErrors
from ndld_flow.report.encoding import rounded
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Column, Table, Value

_MOST_POINTS = 3000
"""Maximum number of points of a line; with more steps, each point is the largest error of several."""
_MOST_LINES = 10


@dataclass(frozen=True)
class StepLine:
    """The errors of one output at the steps of sequences."""

    output: str
    metric: str
    errors: list[float | None]
    """The largest error of as many steps as `share`; None where none could be compared."""
    bound: float | None
    first: int | None
    """The first step beyond a bound, from 0."""
    flipped: list[int]
    """Steps, from 0, where the two models decide differently."""


@dataclass(frozen=True)
class StepChart:
    """The chart of a comparison over sequences."""

    share: int
    """Steps of each point."""
    steps: int
    ends: list[int]
    """Number of steps up to the end of each sequence but the last."""
    labels: list[str]
    lines: list[StepLine]


@dataclass(frozen=True)
class SequenceView:
    """One comparison over sequences."""

    accuracy: Accuracy
    states: str
    outputs: Table
    agreement: SequenceAgreement


_READ: Mapping[tuple[str, str], str] = {
    ("own", ""): "its own states",
    ("own", "own"): "its own states and its own tokens",
    ("own", "reference"): "its own states and the reference's tokens",
    ("reference", ""): "the reference's states at every step",
    ("reference", "reference"): "the reference's states and tokens at every step",
}
"""The values that the candidate read, by `states` and `tokens` of a record."""


def collect_sequences(accuracies: Mapping[str, Accuracy]) -> tuple[SequenceView, ...]:
    """Return the comparisons over sequences, in recipe order."""
    return tuple(
        SequenceView(
            accuracy=accuracy,
            states=_READ[accuracy.sequence.states, accuracy.sequence.tokens],
            outputs=_outputs(accuracy.sequence),
            agreement=accuracy.sequence,
        )
        for accuracy in accuracies.values()
        if accuracy.sequence is not None
    )


_COLUMNS = (
    Column("Output", "name"),
    Column("Is fed to", "label"),
    Column("Diverges at", "label"),
    Column("Steps beyond a bound", "number", count),
    Column("Metric", "label"),
    *(Column(title, "number") for title in ("Worst step", "Limit over all", "First quarter", "Last quarter")),
    Column("Flipped decisions"),
)


def _outputs(agreement: SequenceAgreement) -> Table:
    """Return the outputs over all steps; the first divergent step is outside a bound."""
    bad = {(row, 2) for row, output in enumerate(agreement.outputs) if output.first_divergent is not None}
    return Table(_COLUMNS, tuple(_row(output, agreement) for output in agreement.outputs), frozenset(bad))


def _row(output: StepErrors, agreement: SequenceAgreement) -> tuple[Value, ...]:
    known = [(error, step) for step, error in enumerate(output.errors) if error is not None]
    worst = max(known, default=None)
    first = output.first_divergent
    worst_text = _error(output.metric, worst[0] if worst else None)
    flipped = ABSENT
    if output.flipped_count is not None:
        flipped = f"{output.flipped_count:,} of {sum(agreement.lengths):,} ({short_name(output.decision, 60)})"
        flipped += f", first at {_step(agreement, output.flipped[0])}" if output.flipped else ""
        if output.margins and output.margins[0] is not None and output.median_margin is not None:
            flipped += f", margin {number(output.margins[0])} there and {number(output.median_margin)} as median"
    return (
        short_name(output.output),
        short_name(output.state) or ABSENT,
        ABSENT if first is None else _step(agreement, first),
        output.divergent_count,
        short_name(output.metric, 40),
        f"{worst_text} at {_step(agreement, worst[1])}" if worst and worst[0] else worst_text,
        *(_error(output.metric, value) for value in (output.bound, output.early_error, output.late_error)),
        flipped,
    )


def _step(agreement: SequenceAgreement, index: int) -> str:
    return short_name(agreement.step_name(index), 80)


def _error(metric: str, value: float | None) -> str:
    return ABSENT if value is None else metric_text(metric, value)


def charts_of(views: tuple[SequenceView, ...]) -> list[StepChart]:
    """Return the lines of each chart: errors of outputs with an error at any step, the worst first."""
    return [_chart(view.agreement) for view in views]


def _chart(agreement: SequenceAgreement) -> StepChart:
    steps = sum(agreement.lengths)
    share = max(1, -(-steps // _MOST_POINTS))
    lines = [output for output in agreement.outputs if any(error for error in output.errors)][:_MOST_LINES]
    return StepChart(
        share=share,
        steps=steps,
        ends=list(accumulate(agreement.lengths))[:-1],
        labels=[short_name(label, 80) for label in agreement.labels],
        lines=[
            StepLine(
                output=short_name(output.output, 80),
                metric=short_name(output.metric, 40),
                errors=[
                    rounded(max(known), 4) if known else None
                    for start in range(0, steps, share)
                    for known in [[error for error in output.errors[start : start + share] if error is not None]]
                ],
                bound=output.bound,
                first=output.first_divergent,
                flipped=list(output.flipped),
            )
            for output in lines
        ],
    )


PANEL = Panel(
    "Sequences", lambda documents: collect_sequences(documents.of(Accuracy)), after="accuracy", data=charts_of
)
