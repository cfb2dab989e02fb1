"""Quantize a model to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Tag, field_validator, model_validator

from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.quantities import counted, milliseconds, ratio_change, size_change
from ndld_flow.engines.building import TrialEngineSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.versions import read_version
from ndld_flow.quantize.settings import ModelOpt, PlacementSettings, QuantizeSettings
from ndld_flow.runtimes.one_runtime import OneRuntime, request_of, versions_of
from ndld_flow.runtimes.onnxruntime.settings import CustomOps, loaded_paths
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.samples.sample_settings import FittedSettings
from ndld_flow.step import Context, Foresight, Reads, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import Onnx, PrecisionDocument

if TYPE_CHECKING:
    from ndld_flow.placement.place import Placer
    from ndld_flow.quantize.calibration import Workspace
    from ndld_flow.quantize.quantize_file import Quantization, QuantizeInputs
    from ndld_flow.records.placement import Placement
    from ndld_flow.records.precision_search import PrecisionSearch
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.samples.sample_feeds import Samples

_MODELOPT_TAKES = frozenset({"method", "op_types", "exclude", "allow_empty"})
"""Settings of quantization that ModelOpt accepts; it decides the rest itself."""


class Quantize(QuantizeSettings, FittedSettings, Step[Onnx, Onnx]):
    """Quantize a model to 8 or 4 bits: Q/DQ pairs with ranges measured on samples, or only weights.

    By default only layers that profit are quantized: on a CPU dense convolutions and matrix products, which become 1.3
    to 2 times as fast, but not depthwise convolutions and chains of small operators, which become slower and cost most
    of the accuracy; `min_intensity` sets the limit. A `find_precision` step with `precision: int8` finds layers to
    leave out; `found_by` takes its result. Run `sanitize` first, so that BatchNormalization is folded, and
    `check_accuracy` afterwards. Layers of a float16 model compute in float32 between Casts, as ONNX Runtime's CPU does.

    The weights of language models become int4 with `mode: weight_only`: at any size, in little memory. The log lists
    each layer that is not quantized, with the reason; a run in which no layer is quantized fails.

    With `optimize: latency`, measurements decide: a layer is quantized only if the model is faster with it in the
    `runtime`, at 95 % confidence, and its outputs stay within `tolerance`. If nothing pays, the result is the source.
    """

    # 14: the record of `optimize` counts all parts that the samples reach in one form.
    version: ClassVar[int] = 17

    also_called: ClassVar[tuple[str, ...]] = ("quantise", "quantization", "quantisation", "int8", "ptq", "quant")
    synonyms: ClassVar[Mapping[str, str]] = {
        "op_types_to_quantize": "op_types",
        "nodes_to_exclude": "exclude.nodes",
        "calibrate_method": "method",
        "calibration_method": "method",
        "calibration_data": "data",
        "activation_type": "activations",
        "weight_type": "weights",
        "quant_mode": "mode",
        "quant_format": "format",
    }

    keeps_inputs: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("nodes", "quantized", "layers"),
        *metrics("ratio", "ratio_low", "ratio_high", given=lambda step: step.optimize is not None, when="layers pay"),
        *metrics("initializer_bytes", "file_bytes", unit="bytes"),
    )

    found_by: Annotated[str | None, Reads(PrecisionDocument)] = None
    """A `find_precision` step with `precision: int8`: the nodes that it found are not quantized."""

    optimize: (
        Annotated[
            Annotated[Literal["latency"], Tag("name")] | Annotated[PlacementSettings, Tag("settings")],
            Discriminator(lambda given: "name" if isinstance(given, str) else "settings"),
        ]
        | None
    ) = None
    """`latency`: quantize only layers that pay. Each kind of layer is measured in turns with its float counterpart,
    sets of layers are judged on the samples, and the fastest is measured against the source. All layers are candidates,
    unless `min_intensity` or `exclude` leave them out. A section such as `{objective: latency, time: 10 min}` has the
    limits."""

    tolerance: Tolerance | None = None
    """For `optimize`: bounds on the differences of outputs on the samples, as in `find_precision`: by default the
    `loose` bounds of `slices`."""

    modelopt: ModelOpt | None = None
    """Quantize with NVIDIA ModelOpt, for TensorRT: FP8, INT8 or INT4. ModelOpt gets the samples, `method` (`minmax` or
    `entropy`), `op_types`, `exclude` and the nodes of `found_by`, and decides the rest itself."""

    custom_ops: CustomOps = ()
    """Libraries with custom operators for ONNX Runtime, such as `libmy_ops.so`, which calibration and the check of the
    result load. They need a
    trusted recipe."""

    # Without `optimize`, nothing is measured that depends on the recipe's runtime.
    runtime: Annotated[
        RuntimeSettings | None,
        OneRuntime(engines=False, more=(TrialEngineSettings,), follows=lambda entry: bool(entry.get("optimize"))),
    ] = None
    """Another runtime for calibration, with its settings as in `profile`, such as `openvino`; for TensorRT those of
    `build_engine`, such as `{backend: tensorrt}`. Ranges are those of the values that it computes. With `optimize`, it
    is the one that is measured and judged; without it, that is ONNX Runtime on the CPU."""

    @property
    def operator_libraries(self) -> tuple[str, ...]:
        return loaded_paths(self.custom_ops)

    @field_validator("tolerance")
    @classmethod
    def _loosen(cls, given: Tolerance | None) -> Tolerance | None:
        return None if given is None else given.or_loose()

    @model_validator(mode="after")
    def _check_modelopt(self) -> Self:
        if self.modelopt is None:
            return self
        for name, field in QuantizeSettings.model_fields.items():
            if name not in _MODELOPT_TAKES and getattr(self, name) != field.default:
                raise ValueError(f"`modelopt` decides `{name}` itself: remove one of the two")
        if self.runtime is not None:
            raise ValueError("`modelopt` calibrates in its own environment: remove `runtime`")
        if self.custom_ops:
            raise ValueError("`modelopt` runs models without `custom_ops`: remove one of the two")
        allowed = ("minmax",) if self.modelopt.format == "int4" else ("minmax", "entropy")
        if self.method not in allowed:
            raise ValueError(f"`modelopt` with {self.modelopt.format} has no `method: {self.method}`: remove it")
        return self

    @model_validator(mode="after")
    def _check_optimize(self) -> Self:
        if self.optimize is None:
            if self.tolerance is not None:
                raise ValueError("`tolerance` needs `optimize: latency`; `check_accuracy` checks the result otherwise")
            return self
        if self.mode != "static" or self.modelopt is not None:
            raise ValueError("`optimize` chooses layers for `mode: static`: remove one of the two")
        if self.format != "qdq":
            raise ValueError("`optimize` measures layers between Q/DQ pairs: remove `format`")
        if isinstance(self.runtime, TrialEngineSettings):
            raise ValueError("`optimize` measures models, not engines: choose another `runtime`, or none")
        if self.runtime is not None and self.placement.threads:
            raise ValueError("`optimize.threads` is for ONNX Runtime: set the threads in `runtime`")
        return self

    @property
    def placement(self) -> PlacementSettings:
        """Return the goal and the limits of `optimize`."""
        return self.optimize if isinstance(self.optimize, PlacementSettings) else PlacementSettings()

    @property
    def least_intensity(self) -> float:
        # Measurements replace the limit, which only says what usually pays.
        return 0.0 if self.optimize is not None and self.min_intensity is None else super().least_intensity

    @property
    def calibrates(self) -> bool:
        return self.mode == "static"

    @property
    def device(self) -> str:
        if self.optimize is None:
            return ""
        return self.runtime.device if self.runtime is not None else "cpu"

    def reused_where(self) -> Reuse:
        return type(self).reuse if self.optimize is None else Reuse.THIS_HOST

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        return spec if self.mode == "static" else None

    def for_engine(self) -> Self:
        is_given = "target" in self.model_fields_set or self.modelopt is not None or self.optimize is not None
        fits = self.mode == "static" and self.format == "qdq" and self.weights == "int8"
        fits &= self.activations in (None, "int8") and self.symmetric is not False
        return self.model_copy(update={"target": "tensorrt"}) if fits and not is_given else self

    def foresee(self) -> Foresight:
        from ndld_flow.quantize.settings import foresee_hqq, foresee_modelopt

        if self.modelopt is not None:
            return foresee_modelopt(self.modelopt.python)
        seen = self.runtime.foresee() if self.runtime is not None else Foresight()
        if self.optimize is not None:
            limit = f"layers that pay, measured and tried for {milliseconds(self.placement.time)} at most"
            return replace(seen, notes=(limit, *seen.notes))
        if self.runtime is not None:
            return seen
        if self.algorithm == "hqq":
            return foresee_hqq()
        return Foresight(notes=("for TensorRT: symmetric INT8",) if self.target == "tensorrt" else ())

    def library_versions(self) -> dict[str, str]:
        from ndld_flow.quantize.settings import modelopt_versions

        own: dict[str, str] = {}
        if self.modelopt is not None:
            own = modelopt_versions(self.modelopt.python)
        elif self.algorithm == "hqq":
            own = {"torch": read_version("torch")}
        elif self.reduce_range == "auto":  # the result depends on this CPU
            own = {"weights here": "7 bits" if self.reduces_range else "8 bits"}
        return super().library_versions() | own | versions_of(self.runtime)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.quantize.calibration import Workspace
        from ndld_flow.quantize.quantize_file import QuantizeInputs

        search = self._search(source, context)
        samples = self._samples(source, context)
        for line in samples.described if samples is not None else ():
            context.log.info("%s", line)
        runtime = request_of(self.runtime, source, context)
        workspace = Workspace(context.scratch, context.progress, context.log)
        placer = self._placer(source, samples, runtime, workspace)
        place = placer.place if placer is not None else None
        data = QuantizeInputs(samples, search, loaded_paths(self.custom_ops), runtime, place)
        quantized = self._quantize(source.path, out, data, workspace, context)
        for node in quantized.nodes:
            context.log.info("quantized: %s %s", node.op_type, node.name)
        for layer in quantized.skipped:
            context.log.info("not quantized: %s %s: %s", layer.op_type, layer.name, layer.reason)
        for warning in quantized.warnings:
            context.log.warning("%s", warning)
        for note in quantized.change.notes:
            if note not in quantized.warnings:
                context.log.info("%s", note)
        if placer is None:
            return _result(quantized)
        return _placed(quantized, placer.finished(out / Onnx.main), out)

    def _placer(
        self, source: Onnx, samples: Samples | None, runtime: SessionRequest | None, workspace: Workspace
    ) -> Placer | None:
        """Return the search for the layers that pay; None if all layers are quantized."""
        if self.optimize is None or samples is None:
            return None
        from ndld_flow.placement.place import PlacementRequest, Placer
        from ndld_flow.precision_search.search import SETTINGS
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        libraries = loaded_paths(self.custom_ops)
        reference = replace(SETTINGS, custom_ops=libraries)
        request = PlacementRequest(
            source=source.path,
            label=source.label,
            settings=self,
            placement=self.placement,
            tolerance=self.tolerance or Tolerance(slices="loose"),
            samples=samples,
            target=runtime or OnnxruntimeRequest(threads=self.placement.threads, custom_ops=libraries),
            reference=reference,
            judged_in=runtime or reference,
        )
        return Placer(request, workspace)

    def _quantize(
        self, source: Path, out: Path, data: QuantizeInputs, workspace: Workspace, context: Context
    ) -> Quantization:
        from ndld_flow.processes.launch import log_to
        from ndld_flow.quantize.modelopt import Settings, quantize_by_modelopt
        from ndld_flow.quantize.quantize_file import quantize_file

        if self.modelopt is None:
            return quantize_file(source, out / Onnx.main, self, data, workspace)
        report = log_to(context.log, context.progress)
        return quantize_by_modelopt(source, out, Settings(self, self.modelopt), data, workspace, report)

    def _samples(self, source: Onnx, context: Context) -> Samples | None:
        from ndld_flow.accuracy.sequence_runs import read_samples
        from ndld_flow.models.files import model_inputs

        if self.mode != "static":
            return None
        return read_samples(source.path, model_inputs(source.path), context.inputs, self, source.label)

    def _search(self, source: Onnx, context: Context) -> PrecisionSearch | None:
        from ndld_flow.precision.constraints.rules import read_search_result, refuse_other_precision, settings_notes
        from ndld_flow.quantize.int8_reducer import settings_of

        if self.found_by is None:
            return None
        search = read_search_result(context.read("found_by").path)
        refuse_other_precision(search, "int8", "quantize")
        if self.modelopt is not None:
            return search  # ModelOpt's quantization differs from the search's
        for note in settings_notes(search, source.label, settings_of(self)):
            context.log.warning("%s", note)
        return search


def _result(quantized: Quantization) -> Result:
    layers = sum(not node.follows for node in quantized.nodes)
    return Result(
        summary=f"{quantized.description}: {layers} of {quantized.layers} layers, "
        f"{size_change(quantized.size_before, quantized.size_after)}",
        metrics={
            "nodes": quantized.change.after.node_count,
            "quantized": len(quantized.nodes),
            "layers": layers,
            "initializer_bytes": quantized.change.after.initializer_bytes,
            "file_bytes": quantized.size_after,
        },
        change=quantized.change,
    )


def _placed(quantized: Quantization, placement: Placement, out: Path) -> Result:
    """Write the record of a placement; return the result with what was measured."""
    from ndld_flow.records.power import qualify

    placement.write(out)
    result = _result(quantized)
    measured = placement.delivered
    if measured is None:
        pays = "was not found to pay in the time given" if placement.ended_early else "does not pay"
        summary = f"INT8 {pays} in {placement.backend}: the model is the source; {_best_trial(placement)}"
        return replace(result, summary=summary)
    found = {"ratio": measured.ratio, "ratio_low": measured.low, "ratio_high": measured.high}
    interval = f"{ratio_change(measured.low)} to {ratio_change(measured.high)}"
    summary = f"{result.summary}, latency {ratio_change(measured.ratio)} ({interval}) in {placement.backend}"
    fitted = f"accurate on the {counted(placement.sample_count, 'sample')} that calibrated it"
    summary += qualify(placement.power, (fitted,))
    return replace(result, summary=summary, metrics={**result.metrics, **found})


def _best_trial(placement: Placement) -> str:
    measured = [trial.latency for trial in placement.trials if trial.latency is not None]
    if not placement.regions:
        return "no layer can be quantized"
    if not measured:
        return "no set of layers was accurate and measured"
    best = min(measured, key=lambda latency: latency.ratio)
    return f"the fastest of {len(measured)} sets has {best.text} of its latency"
