"""Two models judged by a user's metric on a labelled set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.accuracy.kept_outputs import KeptOutputs
from ndld_flow.accuracy.labels import Label, read_labels
from ndld_flow.accuracy.metric_tolerance import MetricTolerance
from ndld_flow.accuracy.model_comparison import Comparison
from ndld_flow.accuracy.user_metric import LabelledSet, Scores, UserMetric, load_metric
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import shortened, suggest
from ndld_flow.records.accuracy import LabelledMetric

_LABEL_LENGTH = 80


@dataclass(frozen=True)
class LabelledJudgement:
    """What the metric says of both models."""

    file: str
    """The name of the user's file."""
    metrics: tuple[LabelledMetric, ...]
    labels: tuple[str, ...]
    """Of each sample, as text."""
    reference: Scores
    candidate: Scores


@dataclass(frozen=True)
class LabelledComparison:
    """A metric and the labels of all samples, ready before anything runs."""

    metric: UserMetric
    labels: Sequence[Label]
    tolerance: Mapping[str, MetricTolerance]

    def judge(self, compared: Comparison) -> LabelledJudgement:
        """Raises `RequestError` where the user's code fails or returns no numbers, and for bounds of a metric that it
        does not return.
        """
        reference = self._score(compared.reference.side.label, compared.samples, compared.kept_reference)
        candidate = self._score(compared.candidate.side.label, compared.samples, compared.kept_candidate)
        self._check_names(reference, candidate)
        metrics = (self._judged(name, value, candidate.values[name]) for name, value in reference.values.items())
        labels = tuple(shortened(str(label), _LABEL_LENGTH) for label in self.labels)
        return LabelledJudgement(self.metric.path.name, tuple(metrics), labels, reference, candidate)

    def _score(self, model: str, samples: Sequence[str], outputs: KeptOutputs) -> Scores:
        return self.metric.score(LabelledSet(model, samples, self.labels, outputs))

    def _check_names(self, reference: Scores, candidate: Scores) -> None:
        names = list(reference.values)
        if reference.values.keys() != candidate.values.keys():
            raise RequestError(
                f"{self.metric.path}: {self.metric.kind}() returns {', '.join(names)} for the reference and "
                f"{', '.join(candidate.values)} for the candidate: return the same names for both."
            )
        for name in self.tolerance:
            if name not in names:
                raise RequestError(
                    f'metric_tolerance: {self.metric.kind}() returns no "{name}"; {suggest(name, names)}'
                )

    def _judged(self, name: str, reference: float, candidate: float) -> LabelledMetric:
        tolerance = self.tolerance.get(name)
        return LabelledMetric(
            name=name,
            reference=reference,
            candidate=candidate,
            bounds={} if tolerance is None else tolerance.given(),
            failed=() if tolerance is None else tuple(tolerance.outside(name, reference, candidate)),
        )


def prepare_labelled(
    metric: Path, labels: Path, tolerance: Mapping[str, MetricTolerance], samples: Sequence[str], *, spare: bool
) -> LabelledComparison:
    """Load a metric and match its labels to the samples.

    With `spare` there may be more labels than samples. Raises `RequestError` when the file of either cannot be read,
    and for labels and samples that do not match.
    """
    return LabelledComparison(load_metric(metric), read_labels(labels).match(samples, spare=spare), tolerance)
