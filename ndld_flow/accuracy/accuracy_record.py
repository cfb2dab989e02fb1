"""The record of a comparison, from what its parts found."""

from __future__ import annotations

from ndld_flow.accuracy.accuracy_summary import unseen_notes, worst_sample
from ndld_flow.accuracy.judging import Asked
from ndld_flow.accuracy.labelled_comparison import LabelledJudgement
from ndld_flow.accuracy.layers import ComparedLayers
from ndld_flow.accuracy.model_comparison import Comparison
from ndld_flow.records.accuracy import Accuracy, SampleAgreement


def compose_accuracy(
    asked: Asked, compared: Comparison, judged: LabelledJudgement | None, layers: ComparedLayers | None
) -> Accuracy:
    """`judged` and `layers` are None where they were not asked for."""
    first, second = compared.reference, compared.candidate
    outputs = tuple(map(asked.judge, compared.outputs))
    tolerance = {} if asked.tolerance is None else asked.tolerance.given(asked.topk)
    return Accuracy(
        reference=first.side.label,
        candidate=second.side.label,
        provider_reference=first.provider,
        provider_candidate=second.provider,
        arithmetic=compared.arithmetic,
        emulated=compared.emulated,
        sample_count=len(compared.samples),
        inputs=compared.inputs,
        tolerance=tolerance,
        output_tolerance={name: own.given(asked.topk) for name, own in asked.by_output.items()},
        outputs=outputs,
        samples=_samples(compared, judged),
        worst_sample=worst_sample(outputs, list(tolerance)),
        metric_file=None if judged is None else judged.file,
        labelled=() if judged is None else judged.metrics,
        layers=() if layers is None else layers.kept,
        layers_compared=0 if layers is None else layers.count,
        first_divergent=None if layers is None else layers.first,
        divergence_bounds={} if layers is None else dict(layers.bounds),
        notes=(*compared.notes, *unseen_notes(outputs), *(() if layers is None else layers.notes)),
    )


def _samples(compared: Comparison, judged: LabelledJudgement | None) -> tuple[SampleAgreement, ...]:
    return tuple(
        SampleAgreement(
            sample=sample,
            # An output that could not be compared has no metrics from there on.
            outputs={output.name: output.samples[i] for output in compared.outputs if i < len(output.samples)},
            label=None if judged is None else judged.labels[i],
            scores_reference={} if judged is None or not judged.reference.each else judged.reference.each[i],
            scores_candidate={} if judged is None or not judged.candidate.each else judged.candidate.each[i],
        )
        for i, sample in enumerate(compared.samples)
    )
