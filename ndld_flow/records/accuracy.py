"""Agreement of two models' outputs and layers, and the accuracy of each on a labelled set."""

from __future__ import annotations

import math
from typing import Literal

from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.base.quantities import counted, percent
from ndld_flow.base.text import first_of, short_name
from ndld_flow.records.document import Count, Document, Record
from ndld_flow.records.execution import BuiltFile, Execution
from ndld_flow.records.power import Power


class TensorRange(Record):
    """The values of one tensor over all samples. Shares are fractions, 0 to 1, of all its elements."""

    tensor: str
    elements: Count
    minimum: float
    """Smallest finite value; minimum, maximum and rms are 0 if nothing is finite."""
    maximum: float
    rms: float
    """Root of the mean square of the finite values."""
    smallest_abs: float
    """Magnitude of the finite value other than 0 that is nearest to 0; 0 if all are 0."""
    nan_count: Count = 0
    inf_count: Count = 0
    beyond_share: float = 0.0
    """Finite values beyond the format's largest (65504 for fp16)."""
    subnormal_share: float = 0.0
    """Values other than 0 below the format's smallest normal number, where it has fewer bits."""
    vanishing_share: float = 0.0
    """Values other than 0 that the format rounds to 0."""

    @property
    def largest_abs(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))


class LayerDivergence(Record):
    """One tensor of the candidate against the same tensor of the reference."""

    position: int
    """Position of its node in the order of execution, from 0."""
    node: str
    op_type: str
    tensor: str
    shape: tuple[int, ...] = ()
    metrics: dict[str, float]
    """As in `records.accuracy`, of the worst sample: `slice_rms`, `cosine`, `snr_db`, `max_abs` and `relative_rms`.
    Empty if nothing is finite in both."""
    worst_slice: str = ""
    """The slice where `slice_rms` is worst, such as `channel 4`; empty if it is the whole tensor."""
    reads: tuple[str, ...] = ()
    """Tensors of the other layers from which it is directly computed, with no other layer in between."""
    nonfinite: int = 0
    """Elements that are NaN or infinite only in the candidate."""
    range: TensorRange | None = None
    """The reference's values against the candidate's format."""


OutputKind = Literal["numbers", "classes", "exact"]
"""The criterion for an output. `numbers`: floats and 8-bit images, slice by slice. `classes`: a class map, by overlap.
`exact`: other integers, bools and strings, which must be equal."""
SAME_DB = 1000.0
"""snr_db and psnr_db of outputs that do not differ at all (the ratio is infinite, which JSON cannot express)."""


def noise_of(snr_db: float) -> float:
    """Return the rms of the noise relative to the signal's, at most 1e300, which an untrusted record may exceed."""
    return float(10 ** min(300.0, -snr_db / 20))


class OutputAgreement(Record):
    """One output tensor of the candidate against the reference's, over all samples."""

    output: str
    dtype: str
    shape: tuple[int, ...]
    metrics: dict[str, float]
    """`slice_rms`, `slice_max`, `position_rms`, `iou_loss` (fractions), `max_abs`, `mean_abs`, `max_rel`, `rmse`,
    `relative_rms`, `cosine`, `snr_db` (dB), `psnr_db` (dB), `kl` (nats), `top1`, `top5`, `mismatched` (fraction of
    elements outside), ...; only those that are defined for this output."""
    worst_samples: dict[str, str] = {}
    """Metric -> the sample where it is worst; without metrics that are equal on all samples."""
    judged_as: OutputKind
    slice_axis: int | None = None
    """The axis whose indices are judged one by one (`channels` in messages); None if the output has none."""
    slice_count: int = 0
    """Length of that axis; 0 without one."""
    worst_slices: dict[str, str] = {}
    """Metric -> the slice, position or class where it is worst, such as `channel 4`; without metrics of the whole
    output."""
    unseen: tuple[int, ...] = ()
    """Indices of `slice_axis` that the samples do not activate, so that they are untested; the first 1,000."""
    unseen_count: int = 0
    failed: tuple[str, ...] = ()
    """Metrics outside their tolerance, each as a sentence."""
    undecided: str = ""
    """The reason why its bounds cannot be decided: no value can be compared, or none shows the scale of errors.

    Empty if they are decided."""


def describe_worst_slice(error: float, place: str) -> str:
    """Return `worst slice off by 1.2 % of its spread (channel 4)`."""
    if not error:
        return "no slice differs"
    return f"worst slice off by {percent(error)} of its spread{f' ({place})' if place else ''}"


class SeenSamples(Record):
    """The samples that steps were fitted to, by calibration or a search: their results are judged on others."""

    by: dict[str, tuple[str, ...]]
    """Step -> the first 1,000 samples of the data that it saw."""
    are_judged: bool
    """The judged samples are among them, because the data has no others."""

    def describe(self, judged: int) -> str:
        """Return `judged on 8 samples that small did not see`."""
        steps, samples = " and ".join(self.by), counted(judged, "sample")
        if self.are_judged:
            return f"judged on {samples} that {steps} saw too, as there are no others"
        return f"judged on {samples} that {steps} did not see"


class SampleAgreement(Record):
    """Both models on one sample, as measured."""

    sample: str
    """The name of its file, its position in a file, or its seed."""
    outputs: dict[str, dict[str, float]]
    """Output -> metric -> its value on this sample alone."""
    label: str | None = None
    """Its label in the labelled set, as text."""
    scores_reference: dict[str, float] = {}
    """The user's metric on the reference's outputs, if it is a metric of single samples."""
    scores_candidate: dict[str, float] = {}


class LabelledMetric(Record):
    """A user's metric of both models on a labelled set."""

    name: str
    """`metric` if the user's function returns a plain number."""
    reference: float
    candidate: float
    bounds: dict[str, float] = {}
    """`min`, `max` of the candidate; `drop`, `rise` against the reference in the metric's own unit; `relative_drop`,
    `relative_rise` as fractions of the reference's."""
    failed: tuple[str, ...] = ()
    """Bounds that do not hold, each as a sentence."""

    @property
    def drop(self) -> float:
        """The reference's value minus the candidate's."""
        return self.reference - self.candidate


class StepErrors(Record):
    """One output at each step of sequences."""

    output: str
    state: str = ""
    """The input that it becomes at the next step; empty if it is no state."""
    metric: str
    """The metric of `errors`, such as `slice_rms`."""
    errors: tuple[float | None, ...]
    """Error of each step, all sequences in order, relative to the spread of the output over all steps; None where the
    output could not be compared or has no finite value. Empty if the model has too many outputs, as `notes` state."""
    bound: float | None = None
    """The bound on `metric`."""
    divergent_count: int = 0
    """Steps beyond a bound of the output."""
    first_divergent: int | None = None
    """The first of these, from 0."""
    flipped: tuple[int, ...] = ()
    """Steps, from 0, where the two models decide differently; the first 1,000."""
    flipped_count: int | None = None
    """None if the output is no decision."""
    margins: tuple[float | None, ...] = ()
    """For tokens, the margin of each step in `flipped`: the reference's largest logit minus its second largest."""
    median_margin: float | None = None
    """Median of these margins over all steps, flipped or not."""
    decision: str = ""
    """How the output was read as a decision: `more than 0.5`, `largest element`, `value`."""
    early_error: float | None = None
    """Root of the mean square of `errors` in the first quarter of the steps."""
    late_error: float | None = None
    """The same in the last quarter."""


class SequenceAgreement(Record):
    """Two models over sequences of steps, where outputs of each step are inputs of the next."""

    labels: tuple[str, ...]
    """Label of each sequence."""
    lengths: tuple[int, ...]
    """Number of steps of each sequence."""
    feedback: dict[str, str]
    """Input -> the output whose value it has at the next step."""
    states: Literal["own", "reference"]
    """`own`: each model ran on its own states. `reference`: the candidate got the reference's at every step."""
    tokens: Literal["own", "reference", ""] = ""
    """`reference`: both models read the tokens that the reference chose. `own`: each read its own. Empty without
    tokens."""
    outputs: tuple[StepErrors, ...]

    def step_name(self, index: int) -> str:
        """Return `step 12`, or `speech.wav, step 12` if there are several sequences; `index` counts from 0."""
        for label, length in zip(self.labels, self.lengths, strict=True):
            if index < length:
                return f"{label}, step {index + 1}" if len(self.lengths) > 1 else f"step {index + 1}"
            index -= length
        return f"step {index + 1}"

    @property
    def divergent_steps(self) -> int:
        """Steps beyond a bound, of the output that has the most."""
        return max((output.divergent_count for output in self.outputs), default=0)

    @property
    def first_divergent(self) -> int | None:
        """The first step, from 0, where an output is beyond a bound."""
        firsts = [output.first_divergent for output in self.outputs if output.first_divergent is not None]
        return min(firsts, default=None)


BLIND = "the check would pass the reference's outputs for other samples"
"""The reason why a check shows nothing, such as one of a detector on photographs without what it finds."""


class Accuracy(Document):
    """Comparison of two models on the same inputs, by `check_accuracy`."""

    document: Literal["accuracy"] = "accuracy"
    format_version: int = 13
    file_name = "accuracy.json"
    reference: str
    candidate: str
    provider_reference: str
    provider_candidate: str
    execution_reference: Execution | None = None
    """How the reference was executed; None if single operators were compared with their references."""
    execution_candidate: Execution | None = None
    layers_built: BuiltFile | None = None
    """The file whose layers were compared, with marked outputs: it is not the candidate's, and fuses layers
    differently. None if the candidate's own layers were."""
    arithmetic: Literal["stored", "native"] = "native"
    """`stored`: every fp16 and bf16 tensor is rounded to its type, even where ONNX Runtime would compute in fp32.
    `native`: the arithmetic of the execution provider."""
    emulated: tuple[Literal["reference", "candidate"], ...] = ()
    """The models whose stored precision was emulated: those that have such tensors and ran on the CPU."""
    sample_count: int
    seen: SeenSamples | None = None
    """The samples of the data that steps between the reference and the candidate were fitted to; None if none were."""
    inputs: dict[str, str]
    """Input -> origin of its values: `random uniform [0, 1), seed 0, float32 1x3x320x320`."""
    tolerance: dict[str, float]
    """Metric -> bound; `rtol` and `atol` are a bound on `mismatched`."""
    output_tolerance: dict[str, dict[str, float]] = {}
    """Output -> its own tolerance, which replaces `tolerance` there."""
    by_rounding: bool = False
    """`output_tolerance` is ten times what rounding alone does to the reference's outputs."""
    blind: bool = False
    """The check would pass a candidate that gives each sample the reference's outputs for the next one."""
    outputs: tuple[OutputAgreement, ...]
    samples: tuple[SampleAgreement, ...] = ()
    """In the order in which they ran; empty with `sequence`, and if single operators were compared."""
    worst_sample: str | None = None
    """The sample that is worst by the first metric of `tolerance`; None if all are alike."""
    metric_file: str | None = None
    """The name of the user's Python file; None if no metric was requested."""
    labelled: tuple[LabelledMetric, ...] = ()
    layers: tuple[LayerDivergence, ...] = ()
    """In the order of the reference's execution; for a huge model not all, as `notes` state."""
    layers_compared: int = 0
    first_divergent: LayerDivergence | None = None
    """The first layer beyond `divergence_bounds`; it is in `layers` too."""
    divergence_bounds: dict[str, float] = {}
    """Metric -> bound; a layer outside of it counts as divergent; empty if layers were not compared."""
    sequence: SequenceAgreement | None = None
    """The steps of sequences; None if single samples were compared. `samples` is empty with it."""
    power: Power | None = None
    """Which faults the check would notice; None with `power: off`."""
    when_weak: Literal["pass", "inconclusive"] = "pass"
    """The outcome if no bound is broken, but the check would notice little."""
    notes: tuple[str, ...] = ()
    """Limitations of the comparison: assumed sizes, outputs that are constant."""

    @property
    def violations(self) -> str:
        """Return the first two bounds that are violated, the user's own first, with the output if there are several.

        The first alone may be the mildest.
        """
        several = len(self.outputs) > 1
        own = [sentence for metric in self.labelled for sentence in metric.failed]
        of_outputs = [
            f"{short_name(output.output, 40)}: {sentence}" if several else sentence
            for output in self.outputs
            for sentence in output.failed
        ]
        return first_of([*own, *of_outputs], 2)

    @property
    def tells_by_cosine(self) -> bool:
        """Return whether a cosine tells anything: that of two positive single values is 1 whatever they are."""
        return any(math.prod(output.shape) != 1 for output in self.outputs if "cosine" in output.metrics)

    def worst_output(self, metric: str) -> OutputAgreement | None:
        """Return the output where a metric is worst: the first where it is NaN, which has no order; None without it."""
        having = [output for output in self.outputs if metric in output.metrics]
        sign = -1 if higher_is_better(metric) else 1

        def badness(output: OutputAgreement) -> tuple[bool, float]:
            return math.isnan(output.metrics[metric]), sign * output.metrics[metric]

        return max(having, key=badness, default=None)

    @property
    def worst_slice(self) -> tuple[float, str] | None:
        """Error of the worst slice of all outputs, and its place, such as `output0, channel 4`; None without slices."""
        output = self.worst_output("slice_rms")
        if output is None:
            return None
        name = short_name(output.output) if len(self.outputs) > 1 else ""
        place = short_name(output.worst_slices.get("slice_rms", ""), 60)
        return output.metrics["slice_rms"], ", ".join(filter(None, (name, place)))

    def judges(self, metric: str) -> bool:
        """Return whether a bound limits a metric of the output where it is worst; that on slices limits all others."""
        worst = self.worst_output(metric)
        if self.by_rounding or worst is None:
            return self.by_rounding
        bounds = self.output_tolerance.get(worst.output, self.tolerance)
        return bool(bounds) if metric == "mismatched" else not {metric, "slice_rms"}.isdisjoint(bounds)

    @property
    def failed(self) -> bool:
        """True if a bound does not hold."""
        return any(output.failed for output in self.outputs) or any(metric.failed for metric in self.labelled)

    @property
    def outcome(self) -> Literal["passed", "failed", "inconclusive"]:
        """`inconclusive` if no bound is broken, and some cannot be decided, or the check is weak and must not be."""
        if self.failed:
            return "failed"
        too_weak = self.when_weak == "inconclusive" and bool(self.weak)
        return "inconclusive" if too_weak or any(output.undecided for output in self.outputs) else "passed"

    @property
    def weak(self) -> tuple[str, ...]:
        """The reasons why the check shows little; empty if none is known."""
        blind = (BLIND,) if self.blind else ()
        return blind if self.power is None else (*blind, *self.power.weak)

    @property
    def passed(self) -> bool:
        """True if every bound holds."""
        return self.outcome == "passed"
