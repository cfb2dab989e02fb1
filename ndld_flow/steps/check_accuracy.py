"""Compare two models' outputs on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ndld_flow.accuracy.tolerance import MetricTolerance, Tolerance
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.runtimes.onnxruntime.settings import CustomOps, ProviderOption, loaded_paths, options_that_run_code
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.step import Context, DataFile, Reads, Result, Returns, Reuse, RunsCode, Step, metrics
from ndld_flow.store.kinds import AccuracyDocument, Onnx

if TYPE_CHECKING:
    from ndld_flow.accuracy.accuracy_record import ComparedLayers, Criteria
    from ndld_flow.accuracy.labelled_comparison import LabelledComparison
    from ndld_flow.accuracy.model_comparison import ComparedModel, ModelPair


class CheckAccuracy(SampleSettings, Step[Onnx, AccuracyDocument]):
    """Run two models on the same inputs, compare every output, and fail if they differ too much.

    Float outputs are judged channel by channel, each against its own spread, and the worst channel decides: scores
    between 0 and 1 count as much as boxes in pixels. Channels that the samples do not activate are reported as not
    seen. NaN or infinity in only one of the models always fails. Class maps (integers that are class indices) are
    judged by the overlap of each class; other integers, bools and strings must be equal unless the output has a
    tolerance of its own. With `metric` and `labels` both models are also judged by your own metric on a labelled set.
    """

    also_called: ClassVar[tuple[str, ...]] = ("accuracy", "validate", "verify", "compareoutputs", "comparison")
    synonyms: ClassVar[Mapping[str, str]] = {
        "baseline": "reference",
        "base": "reference",
        "rtol": "tolerance.rtol",
        "atol": "tolerance.atol",
        "cosine": "tolerance.cosine",
        "threshold": "tolerance",
    }

    # 3: outputs are judged slice by slice.
    version: ClassVar[int] = 3
    # Not `anywhere`: kernels differ between CPUs (int8 saturates on some, bfloat16 is emulated on others) and between
    # execution providers, so "within tolerance" holds where it was checked. Checking again is cheap.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    read_key: ClassVar[str] = "candidate"
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *Tolerance.declared(),
        *metrics("top{k}", given=lambda step, k: int(k) in (1, step.topk), when="`topk` is that number"),
        *metrics(
            "{output}.top{k}",
            given=lambda step, output, k: int(k) in (1, step.topk),
            when="the model has 2 to 16 outputs, and `topk` is that number",
        ),
        *metrics("steps", "divergent_steps", when="a sequence runs (an input has `from:`)"),
        *metrics("first_divergent_step", when="a sequence runs, and a step is beyond a bound"),
        *metrics("flipped_steps", when="a sequence runs, and an output is a decision"),
        *Tolerance.declared("{output}.", "the model has 2 to 16 outputs, and this is the name of one"),
        *metrics(
            "{metric}",
            "reference.{metric}",
            "drop.{metric}",
            given=lambda step, metric: step.metric is not None,
            when="`metric:` names a file whose function returns it",
        ),
    )

    reference: Annotated[str, Reads(Onnx)] = "source"
    """The step whose model is the reference, or `source`."""
    tolerance: Tolerance | None = Tolerance()
    """Bounds on the differences of outputs; by default every channel must agree within the `default` bounds of
    `slices`. With `null`, outputs without a tolerance of their own are measured but judged only by NaN and infinity."""
    output_tolerance: dict[str, Tolerance] = Field(default={})
    """Output name -> its own tolerance, which replaces `tolerance` there."""
    arithmetic: Literal["stored", "native"] = "stored"
    """`stored`: on a CPU every fp16 and bf16 tensor is rounded to its type, as a GPU stores it; ONNX Runtime would
    compute such models in fp32 there and hide overflows. `native`: the arithmetic of the execution provider."""
    topk: Annotated[int, Field(ge=2)] = 5
    """The k of the metric `topK`: the share of rows whose largest element is among the candidate's k largest."""
    softmax: tuple[NamePattern, ...] = ()
    """Names or patterns of outputs that are logits: the metric `kl` is computed on their softmax."""
    axis: int = -1
    """The axis along which outputs are probabilities or logits, for `kl`."""
    states: Literal["own", "reference"] = "own"
    """Sequences: `own` feeds each model its own states, so that errors build up as they would in use; `reference` feeds
    the candidate the reference's at every step, which shows the error of a single step."""
    thresholds: dict[str, float] = Field(default={})
    """Sequences: output -> the value above which it decides one way, such as `{output: 0.5}`. Steps where the models
    decide differently are counted (`flipped_steps`). By default 0.5 for an output that is one number between 0 and 1;
    of probabilities, and of logits named in `softmax`, the largest element counts, of integers the value."""
    layers: bool | tuple[NamePattern, ...] = False
    """Compare the tensors inside both models too, and report where they diverge: `true` compares all tensors, a list
    those that its names or patterns of tensors or nodes select. Tensors diverge where they differ by more than the
    tolerance; this is reported and fails nothing."""
    metric: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file with your own metric on a labelled set: `def metric(outputs, label)` for one sample, averaged over
    all samples, or `def evaluate(predictions)` for the whole set, an iterable of `(outputs, label)` pairs. `outputs`
    maps the reference's names to arrays. Either returns a number, named `metric`, or a mapping of names to numbers. The
    contents of the file and of the modules in its folder that it imports are part of the step's key; other files that
    it opens are not, unless it names them by `__file__`. It runs only when the recipe is trusted."""
    labels: Annotated[Path | None, DataFile()] = None
    """The labels for `metric`: a .csv with the columns `file` and `label`, a .json object (file -> label), or a .npy
    with one label per row, in the order of the samples. Labels without a sample are an error unless `samples` limits
    their number."""
    metric_tolerance: dict[str, MetricTolerance] = Field(default={})
    """Name of your own metric -> its bounds, such as `{accuracy: {min: 90 %, drop: 1 %}}`. `min` and `max` bound the
    candidate's value; `drop` and `rise` its difference from the reference, in the metric's own unit; `relative_drop`
    and `relative_rise` its difference relative to the reference. `1 %` is 0.01."""
    provider: str = "cpu"
    """Execution provider that runs the candidate: `cpu`, `cuda`, `tensorrt`, or ONNX Runtime's full name."""
    provider_options: Annotated[dict[str, ProviderOption], RunsCode(options_that_run_code)] = Field(default={})
    """Options of that provider, such as `device_id`. Options that name libraries or files, and unknown options, need
    a trusted recipe."""
    reference_provider: str | None = None
    """Execution provider that runs the reference; by default the candidate's."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """Graph optimization level of ONNX Runtime, for both models."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads within an operator; 0 lets ONNX Runtime choose."""
    custom_ops: CustomOps = ()
    """Libraries with custom operators of either model for ONNX Runtime, such as `libmy_ops.so`. They need a trusted
    recipe."""

    @model_validator(mode="after")
    def _check_metric(self) -> CheckAccuracy:
        if (self.metric is None) != (self.labels is None):
            given, lacking = ("labels", "metric") if self.metric is None else ("metric", "labels")
            raise ValueError(f"`{given}` needs `{lacking}`: your own metric judges outputs by their labels")
        if self.metric_tolerance and self.metric is None:
            raise ValueError("`metric_tolerance` bounds your own metric: give `metric` and `labels` too")
        return self

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.accuracy_record import compose_accuracy, metrics_of, summarize
        from ndld_flow.accuracy.model_comparison import compare_models
        from ndld_flow.samples.received_images import write_received_images

        criteria, pair = self._criteria(), self._pair(source, context)
        criteria.check_names(pair.outputs)
        tensors, labelled = self._tensors(pair), self._labelled(pair)
        compared = compare_models(pair, criteria.measuring, labelled is not None, context.scratch, context.progress)
        judged = labelled.judge(compared) if labelled is not None else None
        accuracy = compose_accuracy(criteria, compared, judged, self._compare_layers(pair, tensors, context))
        for message in (*pair.samples.described, *accuracy.notes, *compared.log.splitlines()):
            context.log.info("%s", message)
        (out / AccuracyDocument.main).write_text(accuracy.to_json(), encoding="utf-8")
        write_received_images(next(iter(pair.samples)).feeds, out)
        for output in accuracy.outputs:
            context.log.info("%s: %s %s", output.output, output.metrics, "; ".join(output.failed) or "ok")
        return Result(summarize(accuracy), accuracy.passed, metrics_of(accuracy))

    def _criteria(self) -> Criteria:
        from ndld_flow.accuracy.accuracy_record import Criteria

        return Criteria(self.tolerance, self.output_tolerance, self.topk, self.axis, self.softmax, self.thresholds)

    def _pair(self, source: Onnx, context: Context) -> ModelPair:
        from ndld_flow.accuracy.model_comparison import pair_models

        artifact = context.read("reference")
        base = self._model(Path(artifact.path), artifact.label, self.reference_provider)
        candidate = self._model(source.path, source.label, None)
        pair = pair_models(base, candidate, context.inputs, self, self.arithmetic)
        return replace(pair, forced=self.states == "reference").with_arithmetic(context.scratch)

    def _model(self, path: Path, label: str, provider: str | None) -> ComparedModel:
        from ndld_flow.accuracy.model_comparison import ComparedModel
        from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

        # The options belong to the candidate's provider; another one would not know them.
        own = provider is None or provider == self.provider
        settings = SessionSettings(
            provider=provider or self.provider,
            provider_options=self.provider_options if own else {},
            optimization=self.optimization,
            threads=self.threads,
            custom_ops=loaded_paths(self.custom_ops),
        )
        return ComparedModel(path, label, settings)

    def _labelled(self, pair: ModelPair) -> LabelledComparison | None:
        from ndld_flow.accuracy.labelled_comparison import prepare_labelled

        if self.metric is None or self.labels is None:
            return None
        samples = [sample.label for sample in pair.complete_samples]
        spare = self.samples is not None
        return prepare_labelled(self.metric, self.labels, self.metric_tolerance, samples, spare=spare)

    def _tensors(self, pair: ModelPair) -> Sequence[str] | None:
        """Return the tensors inside the models to compare; None for all."""
        from ndld_flow.accuracy.accuracy_record import choose_tensors

        return choose_tensors(pair, self.layers) if isinstance(self.layers, tuple) else None

    def _compare_layers(
        self, pair: ModelPair, tensors: Sequence[str] | None, context: Context
    ) -> ComparedLayers | None:
        from ndld_flow.accuracy.accuracy_record import compare_layers

        if not self.layers:
            return None
        return compare_layers(pair, tensors, (self.tolerance or Tolerance()).bounds(topk=self.topk), context.progress)
