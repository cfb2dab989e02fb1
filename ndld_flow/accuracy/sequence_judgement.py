"""The judgement of two models over sequences of steps: the error of each step, its growth, and flipped decisions.

Every metric of an output is computed over all steps and over each step alone, both against the spread of the reference
over all steps, so that an error at a single step in the middle fails by `slice_max` and `position_rms`. That spread can
hide errors where the reference varies less than elsewhere, as after a state has saturated or before it has grown. So
windows of consecutive steps of outputs that are no states are judged too: in each, rms(e) divided by the largest of the
reference's std in the window, 0.02 of its rms there and 0.05 of the spread (0.25 of it for values within [0, 1], whose
spread hides little) must be within the bound on `position_rms`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ndld_flow.accuracy.model_comparison import ComparedOutput, Comparison
from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.base.quantities import counted, finite, percent
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import SequenceAgreement, StepErrors
from ndld_flow.samples.feedback import FedFrom
from ndld_flow.samples.generated_values import is_float

WEAK = "is weak evidence"
_FEW_STEPS = 32
_WINDOWS = 10
_WINDOW_STEPS = 8
"""Minimum number of steps of a window: the std of fewer means little."""
_WINDOW_FLOOR, _UNIT_WINDOW_FLOOR = 0.05, 0.25
_CONSTANT = 0.02
_GROWS = 4.0
_REACH = 10.0
"""An error that grows is noted if it would exceed its bound at so many times its size."""
_MOST_SERIES = 16
_MOST_FLIPPED = 1000
_SUM_MAY_BE_OFF = 0.02
_REPEATS = 8
"""Greedy decoding may end in a loop; it is noted if each token was chosen this many times or more."""


@dataclass(frozen=True)
class SequenceCriteria:
    """The judgement of outputs over sequences."""

    bounds_of: Callable[[ComparedOutput], Mapping[str, float]]
    """Returns metric -> bound of an output."""
    thresholds: Mapping[str, float]
    """Output -> the value above which it decides one way."""
    is_logits: Callable[[str], bool]


@dataclass
class SequenceJudgement:
    """The record of the steps, and its consequences."""

    agreement: SequenceAgreement
    failed: Mapping[str, Sequence[str]]
    """Output -> a sentence for each reason why it fails."""
    notes: Sequence[str]


def judge_sequence(compared: Comparison, criteria: SequenceCriteria) -> SequenceJudgement | None:
    """Judge the steps of sequences; None if single samples were compared."""
    sequences = compared.sequences
    if sequences is None:
        return None
    fed = {fed.output: (name, fed) for name, fed in sequences.feedback.items()}
    tokens = [from_output for from_output in sequences.feedback.values() if from_output.apply]
    outputs = [
        _OutputSteps(output, compared, criteria, *fed.get(output.name, ("", None))) for output in compared.outputs
    ]
    kept = sorted(outputs, key=lambda steps: (steps.is_state, -len(steps.beyond), -steps.worst))[:_MOST_SERIES]
    agreement = SequenceAgreement(
        labels=sequences.labels,
        lengths=sequences.lengths,
        feedback={name: from_output.output for name, from_output in sequences.feedback.items()},
        states="reference" if compared.forced == "states" else "own",
        tokens=("own" if compared.forced == "nothing" else "reference") if tokens else "",
        outputs=tuple(steps.record(full=steps in kept) for steps in outputs),
    )
    failed = {steps.name: steps.sentences(agreement) for steps in outputs}
    notes = [note for steps in outputs for note in steps.notes(agreement)]
    if len(outputs) > len(kept):
        notes.append(f"the record keeps the steps of {len(kept)} of {len(outputs)} outputs, the worst ones")
    if len(sequences) < _FEW_STEPS:
        notes.append(f"agreement over {len(sequences)} steps {WEAK} for longer sequences, in which errors build up")
    states = [steps for steps in outputs if steps.is_state]
    if states and all(steps.is_still for steps in states):
        notes.append(f"no state ever changes in the reference, so that agreement {WEAK} of what the states do")
    return SequenceJudgement(agreement, failed, notes)


class _OutputSteps:
    """One output at every step."""

    def __init__(
        self, output: ComparedOutput, compared: Comparison, criteria: SequenceCriteria, state: str, fed: FedFrom | None
    ) -> None:
        self.name, self._state, self._output = output.name, state, output
        self.is_state = fed is not None and not fed.apply
        self._count = len(compared.samples)
        bounds = criteria.bounds_of(output)
        whole = output.agreement.metrics()
        decisive = dict(bounds)
        if not _is_beyond(whole, bounds, ("slice_rms",)):
            decisive.pop("slice_rms", None)  # the error of one step may exceed the bound on the mean of all
        self._metric = next((metric for metric in (*bounds, "slice_rms", "mismatched") if metric in whole), "max_abs")
        self._bound = bounds.get(self._metric)
        self.errors = [metrics.get(self._metric) for metrics in output.samples]
        reading = self._reading = _Reading(output, compared, criteria, fed)
        self.is_still = reading.is_still
        # A slow channel of a healthy state drifts by much of its own spread; it counts by its effect on the outputs.
        self.blank, self._windows = (
            reading.blank,
            [] if self.is_state else reading.window_failures(bounds.get("position_rms")),
        )
        spoiled = {step for step, count in enumerate(output.nonfinite) if count}
        outside = {step for step, metrics in enumerate(output.samples) if _is_beyond(metrics, decisive)}
        ended = {len(output.samples)} if output.wrong and output.samples else set()
        in_windows = {step for window in self._windows for step in window.beyond}
        self.beyond = sorted(spoiled | outside | ended | in_windows | set(self.blank))

    @property
    def worst(self) -> float:
        """Return the largest error of a step."""
        return max((error for error in self.errors if error is not None), default=math.inf)

    def record(self, *, full: bool) -> StepErrors:
        early, late = self._early_and_late()
        flipped, margins = self._reading.flipped, self._reading.margins
        return StepErrors(
            output=self.name,
            state=self._state,
            metric=self._metric,
            errors=(*self.errors, *[None] * (self._count - len(self.errors))) if full else (),
            bound=self._bound,
            divergent_count=len(self.beyond),
            first_divergent=self.beyond[0] if self.beyond else None,
            flipped=tuple(flipped[:_MOST_FLIPPED]),
            flipped_count=len(flipped) if self._reading.decision else None,
            margins=tuple(finite(margins[step]) for step in flipped[:_MOST_FLIPPED]) if margins else (),
            median_margin=finite(statistics.median(margins)) if margins else None,
            decision=self._reading.decision,
            early_error=early,
            late_error=late,
        )

    def _early_and_late(self) -> tuple[float | None, float | None]:
        """Return the rms error of the first and of the last quarter of the steps."""
        quarter = max(1, self._count // 4)
        return _rms(self.errors[:quarter]), _rms(self.errors[self._count - quarter :])

    def sentences(self, agreement: SequenceAgreement) -> list[str]:
        """Return a sentence for each reason to fail, the step where the sequences diverge first."""
        sentences = []
        if self.beyond:
            where = agreement.step_name(self.beyond[0])
            sentences.append(
                f"it diverges at {where} ({len(self.beyond):,} of {self._count:,} steps are beyond a bound)"
            )
        if self.blank:
            sentences.append(
                f"{len(self.blank)} of {self._count:,} steps have no finite value, so that they cannot be judged"
            )
        for window in self._windows[:1]:
            sentences.append(
                f"the error from {agreement.step_name(window.first)} to {agreement.step_name(window.last)} is "
                f"{percent(window.error)} of the spread there{window.place}, more than {percent(window.bound)}"
            )
        return sentences

    def notes(self, agreement: SequenceAgreement) -> list[str]:
        """Return the reasons why agreement is weaker evidence than it seems."""
        distinct = len(self._reading.tokens)
        if distinct and self._count >= _FEW_STEPS and distinct * _REPEATS <= self._count:
            repeated = f"the reference chose {counted(distinct, 'token')} of {short_name(self.name)}"
            return [f"{repeated} in {self._count:,} steps, so that agreement {WEAK} for other text", *self._growth()]
        return self._growth()

    def _growth(self) -> list[str]:
        early, late = self._early_and_late()
        if self._bound is None or higher_is_better(self._metric) or early is None or late is None or self.beyond:
            return []
        if late < _GROWS * early or late * _REACH < self._bound:
            return []
        return [
            f"the error of {short_name(self.name)} grows from {percent(early)} in the first quarter of the steps to "
            f"{percent(late)} in the last, so that agreement over {self._count:,} steps {WEAK} for longer sequences"
        ]


def _is_beyond(metrics: Mapping[str, float], bounds: Mapping[str, float], only: Sequence[str] = ()) -> bool:
    """Return whether a metric is beyond its bound; metrics that are not defined have none."""
    return any(
        metrics[metric] < bound if higher_is_better(metric) else metrics[metric] > bound
        for metric, bound in bounds.items()
        if metric in metrics and (not only or metric in only)
    )


def _rms(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    largest = max(map(abs, known), default=0.0)
    if not known or not largest:
        return 0.0 if known else None
    return largest * math.sqrt(sum((error / largest) ** 2 for error in known) / len(known))


@dataclass(frozen=True)
class _Window:
    """Consecutive steps whose error is large against their own spread."""

    first: int
    last: int
    error: float
    bound: float
    place: str
    """` in channel 4`; empty for the whole output."""
    beyond: Sequence[int]
    """The steps of the window that have half of its error or more."""


class _Reading:
    """One pass over the stored values of an output in both models."""

    def __init__(
        self, output: ComparedOutput, compared: Comparison, criteria: SequenceCriteria, fed: FedFrom | None
    ) -> None:
        self._fed = fed if fed is not None and fed.apply else None
        self._slices = output.yardstick.slices
        self._count = len(output.samples)
        is_cut = self._slices is not None and not self._slices.layout.smooth_map
        windows = min(_WINDOWS, self._count // _WINDOW_STEPS) if is_cut else 0
        self._windows = windows if windows > 1 else 0
        self._sums: dict[int, Array] = {}
        """Window -> for each slice the sums of its counts, values, squares and squared errors."""
        self._noise: list[float] = []
        self._is_unit = True
        self.blank: list[int] = []
        self.flipped: list[int] = []
        self.margins: list[float] = []
        """Margin of the chosen token at each step."""
        self.tokens: set[int] = set()
        """The tokens that the reference chose."""
        self.is_still = True
        name, before = output.name, None
        self.decision = _decision(output, compared, criteria) if fed is None else _LARGEST if fed.apply else ""
        for step in range(self._count):
            r, c = compared.kept_reference[step].get(name), compared.kept_candidate[step].get(name)
            if r is None or c is None:  # an element that not every step has
                continue
            if is_float(r.dtype) and r.size and not (np.isfinite(r) & np.isfinite(c)).any():
                self.blank.append(step)
            if self._fed is not None:
                mine = self._fed.choose(r)
                self.tokens.update(mine.ravel().tolist())
                self.margins.append(float(self._fed.margins(r).min()))
                if not np.array_equal(mine, self._fed.choose(c)):
                    self.flipped.append(step)
            elif self.decision and _decide(r, c, self.decision, criteria.thresholds.get(name, _HALF)):
                self.flipped.append(step)
            if self._windows:
                self._add(step, r, c)
            self.is_still &= before is None or np.array_equal(before, r)
            before = r
        self.is_still &= name not in compared.reference.growing

    def _add(self, step: int, r: Array, c: Array) -> None:
        assert self._slices is not None
        axis = self._slices.layout.axis
        mine, theirs = (np.moveaxis(array, axis or 0, 0) if array.ndim else array for array in (r, c))
        rows = len(mine) if axis is not None else 1
        mine, theirs = (array.reshape(rows, -1).astype(np.float64) for array in (mine, theirs))
        finite = np.isfinite(mine) & np.isfinite(theirs)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.where(finite, theirs - mine, 0.0)
            values = np.where(finite, mine, 0.0)
            noise = np.square(error).sum(axis=1)
            added = np.stack([finite.sum(axis=1), values.sum(axis=1), np.square(values).sum(axis=1), noise])
        self._is_unit &= bool((values >= 0).all() and (values <= 1).all())
        window = step * self._windows // self._count
        self._sums[window] = self._sums.get(window, 0.0) + added
        self._noise.append(float(noise.sum()))

    def window_failures(self, bound: float | None) -> list[_Window]:
        """Return the windows whose error is beyond a bound, in order."""
        if bound is None or not self._windows or self._slices is None:
            return []
        features = self._slices.features
        floor = (_UNIT_WINDOW_FLOOR if self._is_unit else _WINDOW_FLOOR) * (features or self._slices.whole).spread
        failures = []
        for window, sums in sorted(self._sums.items()):
            values, total, squares, noise = sums
            count = np.maximum(values, 1)
            mean, square = total / count, squares / count
            std = np.sqrt(np.maximum(square - mean**2, 0.0))
            scale = np.maximum.reduce([std, _CONSTANT * np.sqrt(square), floor])
            errors = np.sqrt(noise / count) / scale
            worst = int(np.argmax(errors))
            if errors[worst] > bound:
                steps = [step for step in range(self._count) if step * self._windows // self._count == window]
                mean_noise = sum(self._noise[step] for step in steps) / len(steps)
                place = "" if features is None else f" in channel {worst}"
                beyond = [step for step in steps if self._noise[step] >= mean_noise / 2]
                failures.append(_Window(steps[0], steps[-1], float(errors[worst]), bound, place, beyond))
        return failures


_HALF = 0.5
_LARGEST, _VALUE = "largest element", "value"


def _decision(output: ComparedOutput, compared: Comparison, criteria: SequenceCriteria) -> str:
    """Return how an output is read as a decision; empty if it is none."""
    if output.name in criteria.thresholds:
        return f"more than {criteria.thresholds[output.name]:g}"
    if output.yardstick.kind != "numbers":
        return _VALUE
    values = [array for array in compared.kept_reference.samples_of(output.name)() if array.size]
    if not values or not all(array.ndim for array in values if array.size > 1):
        return ""
    is_unit = not any((array < 0).any() or (array > 1).any() for array in values)
    if is_unit and all(array.size == 1 for array in values):
        return f"more than {_HALF:g}"
    several = all(array.ndim and array.shape[-1] > 1 for array in values)
    shares = is_unit and several and all(np.abs(array.sum(axis=-1) - 1).max() <= _SUM_MAY_BE_OFF for array in values)
    return _LARGEST if shares or (several and criteria.is_logits(output.name)) else ""


def _decide(r: Array, c: Array, decision: str, threshold: float) -> bool:
    """Return whether the two models decide differently."""
    if decision == _LARGEST:
        return bool((np.argmax(r, axis=-1) != np.argmax(c, axis=-1)).any())
    return bool(((r != c) if decision == _VALUE else ((r > threshold) != (c > threshold))).any())
