"""Compare two models' outputs on the same inputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ndld_flow.accuracy.saved_outputs import SavedOutputsSettings
from ndld_flow.accuracy.tolerance import MetricTolerance, Tolerance
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Milliseconds
from ndld_flow.runtimes.environments import EnvironmentSetting, describe_environment, name_code, versions_in_key
from ndld_flow.runtimes.one_runtime import OneRuntime, versions_of
from ndld_flow.runtimes.onnxruntime.settings import RunsInOnnxruntime
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.samples.sample_settings import JudgedSettings, MadeSettings
from ndld_flow.step import Context, DataFile, Foresight, Reads, Result, Returns, Reuse, RunsCode, Step, metrics
from ndld_flow.store.kinds import AccuracyDocument, Engine, Onnx

if TYPE_CHECKING:
    from ndld_flow.accuracy.accuracy_record import Criteria
    from ndld_flow.accuracy.inside.divergence import MarkedModel
    from ndld_flow.accuracy.labelled_comparison import LabelledComparison
    from ndld_flow.accuracy.model_comparison import ComparedModel, Comparison, Forced, ModelPair, ReferenceRun
    from ndld_flow.records.accuracy import Accuracy
    from ndld_flow.runtimes.environments import Environment


class CheckAccuracy(RunsInOnnxruntime, MadeSettings, JudgedSettings, Step[Onnx, AccuracyDocument]):
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

    # 20: rows of lists that the model sorts are compared whatever their order.
    version: ClassVar[int] = 20
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
        *metrics(
            "noticed",
            "within_bounds",
            "unseen",
            given=lambda step: step.power != "off",
            when="`power` is not off, and a fault could be planted in the reference",
        ),
        *metrics("steps", "divergent_steps", when="a sequence runs (an input has `from:`)"),
        *metrics("first_divergent_step", when="a sequence runs, and a step is beyond a bound"),
        *metrics("flipped_steps", when="a sequence runs, and an output is a decision"),
        *metrics("first_flipped_step", when="a sequence runs, and a decision flips"),
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
    tolerance: Tolerance | Literal["rounding"] | None = Tolerance()
    """Bounds on the differences of outputs; by default every channel must agree within the `default` bounds of
    `slices`. With `null`, outputs without a tolerance of their own are measured but judged only by NaN and infinity.
    `rounding` accepts ten times what rounding alone does to the outputs of the reference on these samples, for changes
    that keep all values: it runs the reference four more times, with weights that are off by a unit in the last place,
    and without optimizations. It is the default where only such steps are between the reference and the candidate
    (`sanitize`, `fix_shapes`, `constrain_precision`, most operations of `edit`), and both run in ONNX Runtime on the
    CPU, on single samples; elsewhere the bounds of `slices` apply."""
    output_tolerance: dict[str, Tolerance] = Field(default={})
    """Output name -> its own tolerance, which replaces `tolerance` there; that of a sequence is its elements'."""
    topk: Annotated[int, Field(ge=2)] = 5
    """The k of the metric `topK`: the share of rows whose largest element is among the candidate's k largest."""
    softmax: tuple[NamePattern, ...] = ()
    """Names or patterns of outputs that are logits: the metric `kl` is computed on their softmax."""
    axis: int = -1
    """The axis along which outputs are probabilities or logits, for `kl`."""
    states: Literal["own", "reference"] = "own"
    """Sequences: `own` feeds each model its own states, so that errors build up as they would in use; `reference` feeds
    the candidate the reference's at every step, which shows the error of a single step."""
    tokens: Literal["reference", "own"] = "reference"
    """Sequences with `apply: argmax`: `reference` feeds both models the tokens that the reference chooses (teacher
    forcing), so that all steps compare the same text; `own` lets each model read its own tokens, and after the first
    that differs the two continue different texts."""
    thresholds: dict[str, float] = Field(default={})
    """Sequences: output -> the value above which it decides one way, such as `{output: 0.5}`. Steps where the models
    decide differently are counted (`flipped_steps`). By default 0.5 for an output that is one number between 0 and 1;
    of probabilities, and of logits named in `softmax`, the largest element counts, of integers the value."""
    power: Annotated[
        Literal["auto", "off"] | Annotated[int, Field(ge=1, le=1000)],
        BeforeValidator(lambda given: "off" if given is False else given),  # YAML 1.1 reads `off` as false
    ] = "auto"
    """Number of faults to plant in the reference, to find out what the check is worth: wrong weights, and nodes with a
    wrong operator or attribute. The share that the check would notice, the share within its bounds and the share that
    changes no output are in the result (`noticed`, `within_bounds`, `unseen`). `auto` plants 20, or as many as it can
    try in `power_time`; `off` none."""
    power_time: Annotated[Milliseconds, Field(gt=0)] | None = None
    """Longest time for the planted faults of `power: auto`, by default twice that of the check itself, and at least a
    second."""
    when_weak: Literal["pass", "inconclusive"] = "pass"
    """What becomes of a check that passes, and would notice little: a quarter of the planted faults or more change
    nothing, an output is constant, few rows of a table are read, or an input may be ignored. `pass`: it passes, and
    reports it. `inconclusive`: the run ends with exit code 4."""
    when_generated: Literal["fail", "inconclusive"] = "fail"
    """How the check ends if errors exceed the bounds and all values are generated. A model may never get such values,
    and INT8 has larger errors on them. `inconclusive`: the run ends with exit code 4, and fails only for errors above
    half of the signal (`relative_rms`), of the elements (`mismatched`) or of a class (`iou_loss`), and for NaN or
    infinity."""
    layers: bool | tuple[NamePattern, ...] = False
    """Compare the tensors inside both models too, and report where they diverge: `true` compares all tensors, a list
    those that its names or patterns of tensors or nodes select. Tensors diverge where they differ by more than the
    tolerance; this is reported and fails nothing."""
    layers_engine: Annotated[str | None, Reads(Engine)] = None
    """The engine whose layers are compared, for `layers` of an engine: that of `runtime`, built with `debug_tensors`,
    or another build of the candidate with `mark_outputs`, which fuses layers differently. Outputs are judged on the
    engine of `runtime`."""
    metric: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file with your own metric on a labelled set: `def metric(outputs, label)` for one sample, averaged over
    all samples, or `def evaluate(predictions)` for the whole set, an iterable of `(outputs, label)` pairs. `outputs`
    maps the reference's names to arrays. Either returns a number, named `metric`, or a mapping of names to numbers.
    Every file in the file's folder and below is part of the step's key. It runs only when the recipe is trusted."""
    labels: Annotated[Path | None, DataFile()] = None
    """The labels for `metric`: a .csv with the columns `file` and `label`, a .json object (file -> label), or a .npy
    with one label per row, in the order of the samples. Labels without a sample are an error unless `samples` limits
    their number."""
    metric_tolerance: dict[str, MetricTolerance] = Field(default={})
    """Name of your own metric -> its bounds, such as `{accuracy: {min: 90 %, drop: 1 %}}`. `min` and `max` bound the
    candidate's value; `drop` and `rise` its difference from the reference, in the metric's own unit; `relative_drop`
    and `relative_rise` its difference relative to the reference. `1 %` is 0.01."""
    runtime: Annotated[RuntimeSettings | None, OneRuntime(more=(SavedOutputsSettings,))] = None
    """Another runtime for the candidate, with its settings as in `profile`, such as `{backend: openvino}`, or an engine
    of the candidate: `{backend: tensorrt, engine: STEP}`, with `engine_file: PATH` instead for a prebuilt one.
    A candidate that is also the reference compares the runtimes, and `{backend: onnxruntime, ...}` gives it settings of
    ONNX Runtime of its own. The candidate computes in the runtime's own precision, which the notes of the result
    show. `{backend: polygraphy, inputs: PATH, outputs: PATH}` runs nothing: it reads what `polygraphy run` saved."""
    reference_runtime: Annotated[RuntimeSettings | None, OneRuntime(more=(SavedOutputsSettings,))] = None
    """Another runtime for the reference, such as an engine that was shipped before; by default ONNX Runtime."""
    reference_provider: str | None = None
    """Execution provider that runs the reference; by default that of `provider`, which runs the candidate."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """Graph optimization level of ONNX Runtime, for both models."""
    environment: Annotated[EnvironmentSetting | None, RunsCode(name_code)] = None
    """The private environment that runs the candidate: a name in the recipe's `environments:`, or its packages. A
    candidate that is also the reference compares two releases of a runtime. It needs a trusted recipe."""
    reference_environment: Annotated[EnvironmentSetting | None, RunsCode(name_code)] = None
    """The private environment that runs the reference; by default the installed libraries."""
    polygraphy: bool = False
    """Write the check as a script for Polygraphy too, with its inputs and bounds: `polygraphy/check.py` in the step's
    folder."""

    @model_validator(mode="after")
    def _check_forced(self) -> CheckAccuracy:
        if (self.states, self.tokens) == ("reference", "own"):
            raise ValueError("`tokens: own` needs `states: own`: the states of the reference follow its tokens")
        return self

    @model_validator(mode="after")
    def _check_runtime(self) -> CheckAccuracy:
        runs_engine = self.runtime is not None and self.runtime.builder is not None
        if runs_engine and self.layers and self.layers_engine is None:
            raise ValueError(
                "`layers` compares tensors inside of models, which an engine reports only if it is built for that: "
                "remove it, or build the engine with `debug_tensors` and name it in `layers_engine` too"
            )
        if self.layers_engine is not None and not (runs_engine and self.layers):
            raise ValueError("`layers_engine` needs `layers`, and a `runtime` that runs an engine")
        if self.runtime is not None and self.provider != "cpu":
            raise ValueError("give either `runtime` or `provider`: each chooses what runs the candidate")
        if self.reference_runtime is not None and self.reference_provider is not None:
            raise ValueError(
                "give either `reference_runtime` or `reference_provider`: each chooses what runs the reference"
            )
        if self.reference_runtime is not None and self.layers:
            raise ValueError("`layers` needs a reference in ONNX Runtime: remove it, or `reference_runtime`")
        if self.reference_runtime is not None and self.states == "reference":
            raise ValueError("`states: reference` needs a reference in ONNX Runtime: remove it, or `reference_runtime`")
        return self

    @property
    def _runtimes(self) -> dict[str, RuntimeSettings]:
        """Return the settings of runtimes other than ONNX Runtime, by the key that holds them."""
        named = {"runtime": self.runtime, "reference_runtime": self.reference_runtime}
        return {key: runtime for key, runtime in named.items() if runtime is not None}

    @property
    def _environments(self) -> dict[str, Environment]:
        """Return the environments by the key that holds them."""
        named = {"environment": self.environment, "reference_environment": self.reference_environment}
        return {key: environment for key, environment in named.items() if environment is not None}

    @model_validator(mode="after")
    def _check_environment(self) -> CheckAccuracy:
        if self._environments and self.layers:
            raise ValueError("`layers` compares tensors in the installed ONNX Runtime: remove it, or the environments")
        if self.reference_environment is not None and self.states == "reference":
            raise ValueError(
                "`states: reference` needs the installed ONNX Runtime: remove it, or `reference_environment`"
            )
        return self

    @model_validator(mode="after")
    def _check_metric(self) -> CheckAccuracy:
        if (self.metric is None) != (self.labels is None):
            given, lacking = ("labels", "metric") if self.metric is None else ("metric", "labels")
            raise ValueError(f"`{given}` needs `{lacking}`: your own metric judges outputs by their labels")
        if self.metric_tolerance and self.metric is None:
            raise ValueError("`metric_tolerance` bounds your own metric: give `metric` and `labels` too")
        if self.metric is not None and isinstance(self.made, int):
            raise ValueError("`made` samples have no labels: remove it, or `metric` and `labels`")
        return self

    def after(self, between: Sequence[Step[Any, Any]]) -> Self:
        keeps_values = all(step.keeps_values for step in between)
        if not keeps_values or "tolerance" in self.model_fields_set:
            return self
        return self.model_copy(update={"tolerance": "rounding"})

    def foresee(self) -> Foresight:
        seen = [runtime.foresee() for runtime in self._runtimes.values()]
        notes, problems, lacks = (
            tuple(dict.fromkeys(text for each in seen for text in getattr(each, group)))
            for group in ("notes", "problems", "lacks")
        )
        environments = [*describe_environment(self.reference_environment), *describe_environment(self.environment)]
        return Foresight((*dict.fromkeys(environments), *notes), problems, lacks)

    def library_versions(self) -> dict[str, str]:
        versions = super().library_versions()
        for runtime in self._runtimes.values():
            versions |= versions_of(runtime)
        for key, environment in self._environments.items():
            versions |= {f"{key} {name}": version for name, version in versions_in_key(environment).items()}
        return versions

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.accuracy_record import metrics_of, summarize
        from ndld_flow.accuracy.made_choice import extend_pair
        from ndld_flow.samples.images import write_received_images

        start = time.monotonic()
        pair = self.pair(source, context)
        if self.metric is None:  # nobody labels made samples
            pair = extend_pair(pair, self.made)
        accuracy, messages = self.judge(pair, source, context, power_since=start, out=out)
        context.log_lines(*pair.samples.described, *accuracy.notes, *messages.splitlines())
        accuracy.write(out)
        write_received_images(next(iter(pair.samples)).feeds, out)
        for output in accuracy.outputs:
            context.log.info("%s: %s %s", output.output, output.metrics, "; ".join(output.failed) or "ok")
        undecided = accuracy.outcome == "inconclusive"
        return Result(summarize(accuracy), accuracy.passed, metrics_of(accuracy), inconclusive=undecided)

    def judge(
        self,
        pair: ModelPair,
        source: Onnx,
        context: Context,
        known: ReferenceRun | None = None,
        power_since: float | None = None,
        out: Path | None = None,
    ) -> tuple[Accuracy, str]:
        """Return the judgement of a pair, and the messages of ONNX Runtime; `known` is a run of its reference.

        Its power is measured if `power_since` is given: the time on the monotonic clock when the check began. A script
        for Polygraphy is written into `out`.
        """
        from ndld_flow.accuracy.accuracy_record import choose_tensors, compare_layers, compose_accuracy

        tensors = choose_tensors(pair, self.layers) if isinstance(self.layers, tuple) else None
        labelled = self._labelled(pair)
        pair, criteria, compared = self._compare(pair, context, known, keep=labelled is not None)
        if self.polygraphy and out is not None:
            from ndld_flow.export.polygraphy import write_polygraphy_check

            write_polygraphy_check(out / "polygraphy", pair, criteria, compared.outputs)
        judged = labelled.judge(compared) if labelled is not None else None
        layers = None
        if self.layers:
            tolerance = self.tolerance if isinstance(self.tolerance, Tolerance) else Tolerance()
            marked = self._marked_model(pair, source, context)
            layers = compare_layers(pair, tensors, tolerance.bounds(topk=self.topk), context.progress, marked)
        if self.when_generated == "inconclusive" and pair.complete_samples.is_generated:
            criteria = replace(criteria, is_coarse=True)
        accuracy = compose_accuracy(criteria, compared, judged, layers)
        if power_since is not None and self.power != "off":
            from ndld_flow.accuracy.power.measure_power import measure_power, seconds_for

            check, took_s = criteria.check_of(pair, compared.outputs), time.monotonic() - power_since
            if isinstance(self.power, int):
                power = measure_power(check, context.scratch, count=self.power)
            else:
                seconds = seconds_for(took_s) if self.power_time is None else self.power_time / 1e3
                power = measure_power(check, context.scratch, seconds=seconds)
            accuracy = accuracy.model_copy(update={"power": power, "when_weak": self.when_weak})
        return accuracy, compared.log

    def _compare(
        self, pair: ModelPair, context: Context, known: ReferenceRun | None, *, keep: bool
    ) -> tuple[ModelPair, Criteria, Comparison]:
        """Run and compare the models; return the pair with the samples that decide, the criteria and the comparison.

        Made samples widen the spread against which errors are measured, so that a candidate which fails on the samples
        at hand might pass with them: such a candidate is judged without them.
        """
        from ndld_flow.accuracy.accuracy_record import Criteria
        from ndld_flow.accuracy.model_comparison import compare_first, compare_models
        from ndld_flow.accuracy.rounding import can_measure, rounding_bounds
        from ndld_flow.samples.made_samples import ExtendedSamples

        tolerance = Tolerance() if self.tolerance == "rounding" else self.tolerance
        criteria = Criteria(tolerance, self.output_tolerance, self.topk, self.axis, self.softmax, self.thresholds)
        criteria.check_names(pair.outputs)
        given = pair.samples.base if isinstance(pair.samples, ExtendedSamples) else None
        keep = keep or given is not None
        compared = compare_models(pair, criteria.measuring, keep, context.scratch, context.progress, known)
        comparisons = [(pair, criteria, compared)]
        if given is not None:
            first = compare_first(pair, compared, len(given), criteria.measuring)
            comparisons.append((replace(pair, samples=given), criteria, first))
        if self.tolerance == "rounding" and can_measure(pair):
            bounds, notes = rounding_bounds(pair, [each for _, _, each in comparisons])
            comparisons = [
                (samples, replace(criteria, rounding=own), replace(each, notes=(*each.notes, *notes)))
                for (samples, _, each), own in zip(comparisons, bounds, strict=True)
            ]
        *_, (_, own, first) = comparisons
        return comparisons[-1 if any(own.judge(output).failed for output in first.outputs) else 0]

    def pair(self, source: Onnx, context: Context) -> ModelPair:
        """Return the reference and the candidate with the samples, as they run."""
        from ndld_flow.accuracy.model_comparison import pair_models

        artifact = context.read("reference")
        assert isinstance(artifact, Onnx)
        base = self._in_runtime(self._model(artifact, self.reference_provider), artifact, "reference_runtime", context)
        candidate = self._in_runtime(self._model(source, None), source, "runtime", context)
        pair = pair_models(base, candidate, context.inputs, self, self.arithmetic)
        of_tokens: Forced = "tokens" if self.tokens == "reference" else "nothing"
        forced = "states" if self.states == "reference" else of_tokens
        return replace(pair, forced=forced).with_arithmetic(context.scratch)

    def _in_runtime(self, model: ComparedModel, source: Onnx, key: str, context: Context) -> ComparedModel:
        """Return a model as it runs in the runtime of a setting, if that is set."""
        runtime, environment = self._runtimes.get(key), self._environments.get(key.replace("runtime", "environment"))
        if runtime is None:
            if environment is None:
                return replace(model, request=None)
            from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

            # The request opens the model in another process.
            return replace(model, request=OnnxruntimeRequest(**vars(model.settings)).in_environment(environment))
        request = runtime.request(source, lambda setting: context.read(f"{key}.{setting}")).in_environment(environment)
        built = request.describe_built_file()
        if built is not None and built.marked:
            raise RequestError(
                f"{key}: {built.name} has tensors marked as outputs for inspection (`mark_outputs`), and fuses layers "
                "differently: name the engine that is shipped, which is built without them."
            )
        return replace(model, request=request)

    def _model(self, model: Onnx, provider: str | None) -> ComparedModel:
        from ndld_flow.accuracy.model_comparison import ComparedModel

        settings = replace(self.session, optimization=self.optimization)
        if provider not in (None, self.provider):  # the options belong to the candidate's
            settings = replace(settings, provider=provider, provider_options={})
        return ComparedModel(model.path, model.label, settings)

    def _labelled(self, pair: ModelPair) -> LabelledComparison | None:
        from ndld_flow.accuracy.labelled_comparison import prepare_labelled

        if self.metric is None or self.labels is None:
            return None
        samples = [sample.label for sample in pair.complete_samples]
        spare = self.samples is not None or bool(self.seen)
        return prepare_labelled(self.metric, self.labels, self.metric_tolerance, samples, spare=spare)

    def _marked_model(self, pair: ModelPair, source: Onnx, context: Context) -> MarkedModel | None:
        from ndld_flow.accuracy.inside.divergence import MarkedModel

        if self.layers_engine is None or self.runtime is None:
            return None
        runtime = self.runtime.with_engine(self.layers_engine)
        request = runtime.request(source, lambda _: context.read("layers_engine"))
        built, debugged = request.describe_built_file(), request.with_debug_tensors()
        if built is None or not (built.marked or debugged):
            raise RequestError(
                f"layers_engine: {self.layers_engine} has no debug tensors and no marked outputs: build it with "
                "`debug_tensors`, or another one with `mark_outputs`."
            )
        candidate = pair.candidate
        observed = request if built.marked else debugged or request
        return MarkedModel(candidate.path, candidate.settings, observed, built, context.scratch)
