"""The record of a comparison of two models: judged outputs, compared layers, the summary line, and the metrics that
gates may name.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ndld_flow.accuracy.agreement import Measuring
from ndld_flow.accuracy.inside.capture import tensors_of
from ndld_flow.accuracy.inside.divergence import MarkedModel, Observed, diverge, first_divergent
from ndld_flow.accuracy.labelled_comparison import LabelledJudgement
from ndld_flow.accuracy.model_comparison import (
    CONSTANT,
    ComparedOutput,
    Comparison,
    ModelPair,
    Progress,
    reduced_precision,
)
from ndld_flow.accuracy.power.measure_power import Check, JudgedOutput, is_blind
from ndld_flow.accuracy.sequence_judgement import SequenceCriteria, judge_sequence
from ndld_flow.accuracy.tolerance import SLICE_BOUNDS, UNITS, Tolerance, outside
from ndld_flow.base.declared_metrics import higher_is_better, metric_text
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.quantities import counted, number, percent
from ndld_flow.base.text import first_of, short_name, suggest
from ndld_flow.models.tensors import sequence_of
from ndld_flow.records.accuracy import (
    SAME_DB,
    Accuracy,
    LayerDivergence,
    OutputAgreement,
    SampleAgreement,
    SeenSamples,
    SequenceAgreement,
    describe_worst_slice,
)
from ndld_flow.records.execution import BuiltFile
from ndld_flow.records.measurement import Metric
from ndld_flow.records.power import FaultOutcome, first_reason
from ndld_flow.samples.sample_feeds import SampleArrays

MOST_LAYERS = 1000
"""Maximum number of layers in a record: more would make it too large to view."""


@dataclass(frozen=True)
class ComparedLayers:
    """The layers of a comparison and the first that diverges."""

    kept: tuple[LayerDivergence, ...]
    count: int
    """Number of layers compared, recorded or not."""
    first: LayerDivergence | None
    bounds: Mapping[str, float]
    """Metric -> bound beyond which values have diverged."""
    notes: tuple[str, ...]
    built: BuiltFile | None = None
    """The other build whose layers were compared, instead of the candidate's."""


def compare_layers(
    pair: ModelPair,
    tensors: Sequence[str] | None,
    bounds: Mapping[str, float],
    progress: Progress,
    marked: MarkedModel | None = None,
) -> ComparedLayers:
    """Compare tensors inside both models by name: the given ones of the reference, or all.

    With `marked`, those of the candidate are the marked outputs of that build. Raises `RequestError` if it has none of
    the given ones.
    """
    if marked is not None and tensors is not None and not marked.names().intersection(tensors):
        raise RequestError(f"layers: {marked.built.name} has none of the selected tensors as marked outputs.")
    layers = diverge(
        Observed(pair.reference.to_run, pair.reference.settings),
        marked or Observed(pair.candidate.to_run, pair.candidate.request or pair.candidate.settings),
        SampleArrays(pair.complete_samples),
        tensors,
        reduced_precision(pair.candidate.path),
        progress,
    )
    first = first_divergent(layers, bounds)
    ranked = sorted(layers, key=lambda layer: (layer.nonfinite > 0, layer.metrics.get("relative_rms", 0.0)))
    most_divergent = {layer.tensor for layer in ranked[-MOST_LAYERS:]}
    kept = tuple(layer for layer in layers if layer.tensor in most_divergent or layer is first)
    notes: tuple[str, ...] = ()
    if len(kept) < len(layers):
        notes = (f"the record keeps the {len(kept):,} most divergent of {len(layers):,} compared layers",)
    if marked is not None:
        request = pair.candidate.request
        checked = None if request is None else request.describe_built_file()
        notes += (marked.note(pair.candidate.label if checked is None else checked.name, len(layers)),)
        if marked.built != checked:
            return ComparedLayers(kept, len(layers), first, bounds, notes, marked.built)
    return ComparedLayers(kept, len(layers), first, bounds, notes)


def choose_tensors(pair: ModelPair, patterns: Sequence[str]) -> list[str]:
    """Return the reference's tensors that match a pattern, or whose node does.

    Raises `RequestError` for a pattern that matches nothing.
    """
    places = [place for place in tensors_of(pair.reference.path) if not place.in_body]
    chosen = set()
    for pattern in patterns:
        fits = name_matcher(pattern)
        names = [place.name for place in places if fits(place.name) or (place.node and fits(place.node))]
        if not names:
            known = [place.name for place in places]
            nearest = f"; {suggest(pattern, known)}" if is_plain(pattern) else ""
            raise RequestError(f'layers: "{pattern}" matches no tensor or node of {pair.reference.label}{nearest}')
        chosen.update(names)
    return [place.name for place in places if place.name in chosen]


_SHARES: Mapping[str, FaultOutcome] = {"noticed": "noticed", "within_bounds": "within bounds", "unseen": "unseen"}
"""Metric -> the outcome of planted faults whose share it is."""
_MOST_OUTPUTS = 16
"""Models with more outputs have no metrics of single outputs: the list would be too long to read."""
LITTLE_EVIDENCE = "is weak evidence"
"""Phrase that marks the notes that belong in the summary line."""
_NAMED = 4
_MOST = sys.float_info.max
_NO_AGREEMENT: Mapping[str, float] = {
    "cosine": 0.0,
    "snr_db": -SAME_DB,
    "psnr_db": -SAME_DB,
    **dict.fromkeys((*SLICE_BOUNDS["default"], "max_abs", "mean_abs", "max_rel", "rmse", "relative_rms"), _MOST),
}
"""Metrics of an output without comparable numbers, such as one that is all NaN, so that a gate on it finds its metric
and fails."""


def metrics_of(accuracy: Accuracy) -> dict[str, Metric]:
    """Return the metrics that gates may name.

    `cosine` is that of the worst output, as for every metric; `logits.cosine` is that of one of several outputs, if its
    name is an identifier; `accuracy`, `reference.accuracy` and `drop.accuracy` belong to a user's metric.
    """
    outputs = accuracy.outputs
    is_ruined = any(bool(o.failed) and "float" in o.dtype and "cosine" not in o.metrics for o in outputs)
    ruined = _NO_AGREEMENT if is_ruined else {}
    metrics = {name: _metric(name, value) for name, value in {**_worst(accuracy), **ruined}.items()}
    if 1 < len(accuracy.outputs) <= _MOST_OUTPUTS:
        for output in accuracy.outputs:
            if output.output.isidentifier() and not keyword.iskeyword(output.output):
                metrics |= {f"{output.output}.{name}": _metric(name, value) for name, value in output.metrics.items()}
    if accuracy.sequence is not None:
        metrics |= _sequence_metrics(accuracy.sequence)
    if accuracy.power is not None and accuracy.power.faults:
        metrics |= {name: Metric(value=accuracy.power.share(outcome)) for name, outcome in _SHARES.items()}
    for metric in accuracy.labelled:
        metrics[metric.name] = Metric(value=metric.candidate)
        metrics[f"reference.{metric.name}"] = Metric(value=metric.reference)
        metrics[f"drop.{metric.name}"] = Metric(value=metric.drop)
    return metrics


def _sequence_metrics(sequence: SequenceAgreement) -> dict[str, Metric]:
    flipped = [output.flipped_count for output in sequence.outputs if output.flipped_count is not None]
    flips = [output.flipped[0] for output in sequence.outputs if output.flipped]
    first = sequence.first_divergent
    return {
        "steps": Metric(value=sum(sequence.lengths)),
        "divergent_steps": Metric(value=sequence.divergent_steps),
        **({"flipped_steps": Metric(value=max(flipped))} if flipped else {}),
        **({"first_flipped_step": Metric(value=min(flips) + 1)} if flips else {}),
        **({"first_divergent_step": Metric(value=first + 1)} if first is not None else {}),
    }


def worst_sample(outputs: Sequence[OutputAgreement], bounded: Sequence[str]) -> str | None:
    """Return the worst sample, or None if all samples are alike.

    The worst is found by the first of the bounded metrics, else by `cosine` or `mismatched`, in the output where that
    metric is worst.
    """
    for metric in (*bounded, "slice_rms", "cosine", "mismatched"):
        having = [output for output in outputs if metric in output.worst_samples]
        if having:
            pick = min if higher_is_better(metric) else max
            return pick(having, key=lambda output: output.metrics[metric]).worst_samples[metric]
    return None


def unseen_notes(outputs: Sequence[OutputAgreement]) -> list[str]:
    """Return a sentence for each output with channels that the samples do not activate."""
    notes = []
    for output in outputs:
        if output.unseen_count and output.unseen_count == output.slice_count:
            notes.append(f"{output.output}: its values hardly vary on the samples, so errors on others are unknown")
        elif output.unseen_count:
            some = ", ".join([*map(str, output.unseen[:_NAMED]), *(["..."] if len(output.unseen) > _NAMED else [])])
            notes.append(
                f"{output.output}: the samples do not activate {output.unseen_count:,} of {output.slice_count:,} "
                f"channels ({some}), so their accuracy is unknown"
            )
    return notes


def summarize(accuracy: Accuracy, kept: Collection[str] = ()) -> str:
    """Return `worst slice off by 1.2 % of its spread (channel 4), cosine 0.9998: within tolerance`, and remarks.

    Gates of a recipe judge the metrics that are `kept`, so that these are neither within a tolerance nor unjudged.
    """
    agreement, worst = _agreement(accuracy), _worst(accuracy)
    agreement |= {name: f"{name} {metric_text(name, worst[name])}" for name in kept if name in worst.keys() - agreement}
    labelled = [
        f"{metric.name} {number(metric.candidate)} (reference {number(metric.reference)})"
        for metric in accuracy.labelled
    ]
    figures = [*agreement.values(), *labelled]
    if accuracy.sequence is not None:
        figures += _over_steps(accuracy.sequence)
    remarks = _remarks(accuracy)
    limit = "rounding" if accuracy.by_rounding else "tolerance"
    undecided = [output for output in accuracy.outputs if output.undecided]
    if accuracy.passed:
        unbounded = {metric: text for metric, text in agreement.items() if not accuracy.judges(metric)}
        gated = ", ".join(text for metric, text in unbounded.items() if metric in kept)
        unjudged = ", ".join(text for metric, text in unbounded.items() if metric not in kept)
        judged = ", ".join(each for each in figures if each not in unbounded.values())
        within = f"{judged or 'nothing to compare'}: within {limit}" if judged or not unbounded else ""
        text = "; ".join(filter(None, (gated, within, f"{unjudged}: without a bound" if unjudged else "")))
        text += f", weak: {first_reason(accuracy.weak)}" if accuracy.weak else ""
    elif accuracy.outcome == "inconclusive" and not undecided:
        text = f"weak: {first_reason(accuracy.weak)}"
    elif accuracy.outcome == "inconclusive":
        more = f" (and {counted(len(undecided) - 1, 'more output')})" if len(undecided) > 1 else ""
        text = f'output "{undecided[0].output}": {undecided[0].undecided}{more}'
    else:
        text = f"outside {limit}: {'; '.join(filter(None, (accuracy.violations, ', '.join(figures))))}"
    return f"{text} ({'; '.join(remarks)})" if remarks else text


def _metric(name: str, value: float) -> Metric:
    return Metric(value=value, unit=UNITS.get(name, ""))


def _worst(accuracy: Accuracy) -> dict[str, float]:
    """Return each metric of the output where it is worst."""
    names = dict.fromkeys(name for output in accuracy.outputs for name in output.metrics)
    having = {name: accuracy.worst_output(name) for name in names}
    return {name: output.metrics[name] for name, output in having.items() if output is not None}


def _agreement(accuracy: Accuracy) -> dict[str, str]:
    """Return metric -> its worst value as text."""
    worst = _worst(accuracy)
    slices = {} if accuracy.worst_slice is None else {"slice_rms": describe_worst_slice(*accuracy.worst_slice)}
    if worst.keys() >= {"cosine", "max_abs"}:
        largest = accuracy.worst_output("max_abs") if len(accuracy.outputs) > 1 and worst["max_abs"] else None
        where = f" ({short_name(largest.output)})" if largest is not None else ""  # outputs have units of their own
        figures = {"cosine": f"cosine {number(worst['cosine'])}"} if accuracy.tells_by_cosine else {}
        return slices | figures | {"max_abs": f"max abs {number(worst['max_abs'])}{where}"}
    return {"mismatched": f"{percent(worst['mismatched'])} of elements differ"} if "mismatched" in worst else {}


def _over_steps(sequence: SequenceAgreement) -> list[str]:
    """Return `937 steps` and `1 decision of y flipped`, of tokens with the first step and its margin."""
    flips = []
    for output in sequence.outputs:
        if output.flipped_count and output.median_margin is not None:
            first = f"first at {sequence.step_name(output.flipped[0])}, margin {number(output.margins[0] or 0.0)}"
            flips.append(
                f"{counted(output.flipped_count, 'token')} flipped ({first}, median {number(output.median_margin)})"
            )
        elif output.flipped_count:
            flips.append(f"{counted(output.flipped_count, 'decision')} of {short_name(output.output)} flipped")
    return [counted(sum(sequence.lengths), "step"), *flips]


def _remarks(accuracy: Accuracy) -> list[str]:
    remarks = list(_remark_on_runtime(accuracy))
    if accuracy.seen is not None:
        remarks.append(accuracy.seen.describe(accuracy.sample_count))
    if accuracy.emulated:
        remarks.append("stored precision emulated")
    if accuracy.worst_sample is not None and accuracy.sequence is not None:
        remarks.append(f"worst at {short_name(accuracy.worst_sample)}")
    elif accuracy.worst_sample is not None:
        remarks.append(f"worst of {accuracy.sample_count} samples: {short_name(accuracy.worst_sample)}")
    if accuracy.first_divergent is not None:
        remarks.append(f"values diverge at {short_name(accuracy.first_divergent.tensor)}")
    remarks += remark_on_unseen(
        [each for each in accuracy.outputs if each.unseen_count and each.metrics.get("slice_rms")]
    )
    if accuracy.passed:
        is_told = accuracy.power is not None  # as the reason why the check is weak
        remarks += [note for note in accuracy.notes if LITTLE_EVIDENCE in note and not (is_told and CONSTANT in note)]
    return [*remarks, *(() if accuracy.power is None else accuracy.power.remarks)]


def remark_on_unseen(outputs: Sequence[OutputAgreement]) -> Iterator[str]:
    """Yield which outputs the samples hardly activate."""
    partly = [each for each in outputs if each.unseen_count < each.slice_count]
    alike = [f'"{short_name(each.output)}"' for each in outputs if each not in partly]
    if alike:  # errors are measured all the same
        named = f"outputs {first_of(alike, 2)} hardly vary" if len(alike) > 1 else f"output {alike[0]} hardly varies"
        yield f"{named} on the samples"
    if partly:
        unseen, count = (sum(counts) for counts in zip(*((e.unseen_count, e.slice_count) for e in partly), strict=True))
        names = short_name(partly[0].output) if len(partly) == 1 else counted(len(partly), "output")
        yield f"{unseen:,} of {count:,} channels of {names} hardly vary on the samples"


def _remark_on_runtime(accuracy: Accuracy) -> Iterator[str]:
    """Yield the candidate's engine, or its runtime with the types in which its layers computed."""
    ran = accuracy.execution_candidate
    if ran is not None and ran.built is not None:
        source = "" if ran.built.model else ", of unknown source,"
        yield f"{short_name(ran.built.name)}{source} in {ran.described}"
    elif ran is not None:
        described = f" ran in {ran.described}"
        places = (note.partition(described)[2] for note in accuracy.notes if described in note)
        yield from (f"in {ran.library}{computed}" for computed in [*places][-1:])


_MOST_UNSEEN = 1000


@dataclass(frozen=True)
class Criteria:
    """The metrics to measure on outputs, and their tolerances."""

    tolerance: Tolerance | None
    """None if only outputs with a tolerance of their own are judged."""
    by_output: Mapping[str, Tolerance]
    topk: int
    axis: int
    logits: Sequence[str]
    """Patterns of outputs whose `kl` is computed on their softmax."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Output -> the value above which it decides one way, for sequences."""
    rounding: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Output -> its bounds by the reference's own rounding, in place of `tolerance`."""
    is_coarse: bool = False
    """Leave an output undecided that is beyond its bounds, and not beyond `_COARSE`."""

    def measuring(self, output: str) -> Measuring:
        tolerance = self._own(output) or self.tolerance
        rtol, atol = tolerance.elementwise() if tolerance is not None else (None, None)
        return Measuring(rtol, atol, self.topk, self.axis, self.is_logits(output))

    def is_logits(self, output: str) -> bool:
        return any(name_matcher(pattern)(output) for pattern in self.logits)

    def check_names(self, outputs: Sequence[str]) -> None:
        """Check that each named output exists. Raises `RequestError` otherwise."""
        for setting, named in (("output_tolerance", self.by_output), ("thresholds", self.thresholds)):
            for name in named:
                if name not in outputs:
                    raise UnknownNameError(f'{setting}: the model has no output "{name}"', name, outputs)
        for pattern in self.logits:
            if not any(map(name_matcher(pattern), outputs)):
                raise UnknownNameError(f'softmax: "{pattern}" matches no output', pattern, outputs)

    def judge(self, output: ComparedOutput, failed: Sequence[str] = ()) -> OutputAgreement:
        """Return the output's record, with a sentence for each bound that does not hold, after those in `failed`."""
        metrics, places = output.agreement.metrics(), output.agreement.worst_slices()
        slices = output.yardstick.slices
        unseen = () if slices is None else slices.unseen
        bounds = self.bounds_of(output)
        beyond = outside(metrics, bounds, places)
        is_certain = bool(self.rounding) or bool(outside(output.agreement.certain_metrics(), bounds))
        is_open = self.is_coarse and not outside(
            metrics, {name: _COARSE for name in _COARSE_METRICS if name in metrics}
        )
        fails = is_certain and not is_open
        wrong = (*output.wrong, *_nonfinite(output), *failed, *(beyond if fails else ()))
        undecided = _NO_VALUES if bounds and output.agreement.is_without_values else ""
        if beyond and not fails:
            undecided = f"{beyond[0]}, on generated values" if is_certain else f"{_HARDLY_VARIES}: {beyond[0]}"
        return OutputAgreement(
            output=output.name,
            dtype=output.dtype,
            shape=output.shape,
            metrics=metrics,
            worst_samples=output.agreement.worst_samples(),
            judged_as=output.yardstick.kind,
            slice_axis=None if slices is None else slices.layout.axis,
            slice_count=0 if slices is None or slices.features is None else len(slices.features.seen),
            worst_slices=places,
            unseen=unseen[:_MOST_UNSEEN],
            unseen_count=len(unseen),
            failed=wrong,
            undecided="" if wrong else undecided,
        )

    def bounds_of(self, output: ComparedOutput) -> dict[str, float]:
        own = self._own(output.name)
        if output.name in self.rounding and own is None:
            return dict(self.rounding[output.name])
        tolerance = own or self.tolerance
        if tolerance is None:
            return {}
        return tolerance.bounds(output.yardstick.kind, self.topk, own=own is not None)

    def check_of(self, pair: ModelPair, outputs: Sequence[ComparedOutput]) -> Check:
        """Return the check of these outputs, whose power is to be measured."""
        return Check(pair.reference.path, pair.reference.settings, pair.complete_samples, self.judged(outputs))

    def judged(self, outputs: Sequence[ComparedOutput]) -> tuple[JudgedOutput, ...]:
        """Return how each output is judged."""
        return tuple(
            JudgedOutput(
                each.name,
                each.yardstick,
                self.measuring(each.name),
                self.bounds_of(each),
                each.agreement.is_weak_evidence,
                only_certain=not self.rounding,
            )
            for each in outputs
        )

    def _own(self, output: str) -> Tolerance | None:
        """Return the tolerance given for an output, or for the sequence that contains it."""
        return self.by_output.get(output) or self.by_output.get(sequence_of(output))


_COARSE, _COARSE_METRICS = 0.5, ("relative_rms", "mismatched", "iou_loss")
_HARDLY_VARIES = "its values hardly vary on the samples, which do not show the scale of its errors"
_NO_VALUES = "no value can be compared: all are NaN or infinite in both models, or the output is empty"


def _nonfinite(output: ComparedOutput) -> list[str]:
    sentences = []
    if count := output.agreement.only_candidate_nonfinite:
        sentences.append(f"{count} elements are NaN or infinite where the reference is not")
    if count := output.agreement.only_reference_nonfinite:
        sentences.append(f"{count} elements differ from the NaN or infinity in the reference")
    return sentences


_ONLY_ROUNDING = (
    "only rounding is accepted: ten times what weights that are off by a unit in the last place, or no fusions, change "
    "in the reference; `tolerance: {slices: default}` accepts 5 %"
)


def compose_accuracy(
    criteria: Criteria, compared: Comparison, judged: LabelledJudgement | None, layers: ComparedLayers | None
) -> Accuracy:
    """Compose the record; `judged` and `layers` are None if the step has no metric or compares no layers."""
    first, second, seen = compared.reference, compared.candidate, compared.seen
    steps = judge_sequence(compared, SequenceCriteria(criteria.bounds_of, criteria.thresholds, criteria.is_logits))
    outputs = tuple(criteria.judge(output, steps.failed[output.name] if steps else ()) for output in compared.outputs)
    common = None if criteria.rounding else criteria.tolerance
    tolerance = {} if common is None else common.given(criteria.topk)
    return Accuracy(
        reference=first.side.label,
        candidate=second.side.label,
        provider_reference=first.provider,
        provider_candidate=second.provider,
        execution_reference=first.execution,
        execution_candidate=second.execution,
        layers_built=None if layers is None else layers.built,
        arithmetic=compared.arithmetic,
        emulated=compared.emulated,
        sample_count=len(compared.samples),
        seen=None if seen is None else SeenSamples(by=dict(seen.labels), are_judged=seen.are_judged),
        inputs=compared.inputs,
        tolerance=tolerance,
        by_rounding=bool(criteria.rounding),
        blind=steps is None and judged is None and is_blind(criteria.judged(compared.outputs), compared.kept_reference),
        output_tolerance={
            **{name: dict(bounds) for name, bounds in criteria.rounding.items()},
            **{name: own.given(criteria.topk) for name, own in criteria.by_output.items()},
        },
        outputs=outputs,
        samples=() if steps else _samples(compared, judged),
        worst_sample=worst_sample(outputs, list(tolerance)),
        metric_file=None if judged is None else judged.file,
        labelled=() if judged is None else judged.metrics,
        layers=() if layers is None else layers.kept,
        layers_compared=0 if layers is None else layers.count,
        first_divergent=None if layers is None else layers.first,
        divergence_bounds={} if layers is None else dict(layers.bounds),
        sequence=steps.agreement if steps else None,
        notes=(
            *compared.notes,
            *((_ONLY_ROUNDING,) if criteria.rounding else ()),
            *(steps.notes if steps else ()),
            *unseen_notes(outputs),
            *(() if layers is None else layers.notes),
        ),
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
