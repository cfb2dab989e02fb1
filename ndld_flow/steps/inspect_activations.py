"""Inspect the tensors inside a model on real inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ndld_flow.accuracy.tolerance import Tolerance
from ndld_flow.base.declared_metrics import higher_is_better
from ndld_flow.base.name_patterns import NamePattern
from ndld_flow.base.quantities import Bytes, counted, number
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.activations import Activations, CapturedTensor
from ndld_flow.runtimes.one_runtime import OneRuntime, request_of, versions_of
from ndld_flow.runtimes.onnxruntime.settings import RunsInOnnxruntime
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.samples.sample_settings import Noise, SampleSettings
from ndld_flow.step import Context, Foresight, Reads, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import ActivationsDocument, Onnx

if TYPE_CHECKING:
    from pathlib import Path

    from ndld_flow.accuracy.activations.inspection import Request


def _has_reference(step: InspectActivations, *_: str) -> bool:
    return step.reference is not None


class InspectActivations(RunsInOnnxruntime, SampleSettings, Step[Onnx, ActivationsDocument]):
    """Run a model on real inputs and inspect the tensors inside it.

    It records channel maps, histograms, ranges, and counts of NaN, infinite and saturated values for the report. With a
    `reference`, both models run on the same inputs, and tensors of the same name are compared. Without `tensors`,
    `op_types` and `every`, up to 32 tensors spread over the whole model are selected.
    """

    also_called: ClassVar[tuple[str, ...]] = ("activations", "inspect", "debug")

    version: ClassVar[int] = 3
    # Not `anywhere`: kernels differ between CPUs and between execution providers.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("tensors", "nan", "inf", "saturated"),
        *metrics("compared", "nonfinite", given=_has_reference, when="`reference:` names a model"),
        *Tolerance.declared("worst.", "`reference:` names a model", _has_reference),
    )

    reference: Annotated[str | None, Reads(Onnx)] = None
    """A step whose model runs on the same inputs for comparison, or `source`."""
    tensors: tuple[NamePattern, ...] = ()
    """Tensors to inspect, by names of tensors, nodes or inputs: globs (`conv*`), or `/.../` for a regular expression
    (RE2's syntax) that is searched in the name."""
    op_types: tuple[str, ...] = ()
    """Inspect all outputs of these operators, such as `Conv`."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Inspect every N-th float tensor."""
    until: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """A tensor or node after which the run stops, or several: nodes after the last of them do not run, and may be
    invalid. Several are all inspected, in addition to the selected tensors."""
    noise: Noise | None = None
    """Noise on inputs, to measure the model's sensitivity to small differences."""
    layout: dict[NamePattern, Literal["NCHW", "NHWC", "NCL", "NLC", "NCDHW", "NC", "flat"]] = Field(default={})
    """Name or pattern -> layout of a tensor's dimensions, if the one inferred from its operators is wrong."""
    format: Literal["fp16", "bf16", "fp32", "fp8e4m3", "fp8e5m2"] = "fp16"
    """Format whose range the values are compared with."""
    shown: Annotated[int, Field(ge=0)] = 4
    """Number of samples whose channel maps are kept; statistics cover all samples."""
    channels: Annotated[int, Field(ge=1)] = 64
    """Number of channels of a tensor whose maps are kept: those that differ most from the reference, or without one
    those of the highest energy."""
    map_side: Annotated[int, Field(ge=1, le=4096)] = 256
    """Maximum height and width of a map in pixels; larger maps are reduced to the element of largest magnitude of each
    block."""
    map_bytes: Bytes = 10 * 2**20
    """Size of all maps together; each gets an equal share, and is reduced until it fits. A report page embeds nearly
    all maps of the default size, even if they are noise and hardly compress; the rest stays in separate files."""
    arrays: bool = False
    """Also keep all values of the samples shown, as `.npy`."""
    fail_on: tuple[Literal["nan", "inf", "saturated"], ...] = ()
    """Fail when any inspected tensor contains one of these. Empty: never fail."""
    runtime: Annotated[RuntimeSettings | None, OneRuntime()] = None
    """Another runtime for the model, with its settings as in `profile`, such as `openvino`, or an engine of it:
    `{backend: tensorrt, engine: STEP}`, with `engine_file: PATH` instead for a prebuilt one. An engine has its inputs,
    outputs and the tensors of `mark_outputs`. The reference runs in ONNX Runtime."""

    @model_validator(mode="after")
    def _check_runtime(self) -> InspectActivations:
        if self.runtime is not None and self.provider != "cpu":
            raise ValueError("give either `runtime` or `provider`: each chooses what runs the model")
        if self.until is not None and self.runtime is not None and self.runtime.builder is not None:
            raise ValueError("`until` cuts a model, and an engine runs to its end: remove it")
        return self

    def foresee(self) -> Foresight:
        return Foresight() if self.runtime is None else self.runtime.foresee()

    def library_versions(self) -> dict[str, str]:
        return super().library_versions() | versions_of(self.runtime)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.activations.inspection import InspectedModel, inspect_tensors

        other = context.read("reference") if self.reference is not None else None
        activations = inspect_tensors(
            InspectedModel(source.path, source.label),
            InspectedModel(other.path, other.label) if other is not None else None,
            self._request(source, context),
            out,
            context.scratch,
            context.progress,
        )
        activations.write(out)
        described = activations.samples[0].inputs if activations.samples else {}
        for note in (*(f"input {name}: {origin}" for name, origin in described.items()), *activations.notes):
            context.log.info("%s", visible_name(note))
        layers = {layer.tensor: layer for layer in activations.divergence}
        for tensor in activations.tensors:
            context.log.info("%s", _line(tensor, layers.get(tensor.tensor)))
        metrics = _metrics(activations)
        failed = [name for name in self.fail_on if metrics[name]]
        return Result(_summary(activations, metrics), not failed, metrics)

    def _request(self, source: Onnx, context: Context) -> Request:
        from ndld_flow.accuracy.activations.inspection import Request
        from ndld_flow.accuracy.activations.maps import MapLimits
        from ndld_flow.accuracy.activations.selection import TensorSelection
        from ndld_flow.accuracy.inside.layer_meters import FORMAT_LIMITS

        return Request(
            settings=self.session,
            given=context.inputs,
            samples=self,
            selection=TensorSelection(self.tensors, self.op_types, self.every or 0),
            limits=FORMAT_LIMITS[self.format],
            maps=MapLimits(self.shown, self.channels, self.map_side, self.map_bytes, self.arrays),
            until=(self.until,) if isinstance(self.until, str) else self.until or (),
            layouts=self.layout,
            noise=self.noise,
            stored=self.arithmetic == "stored",
            runtime=request_of(self.runtime, source, context),
        )


def _metrics(activations: Activations) -> dict[str, float]:
    """Return counts over all tensors, and each metric of the tensor where it is worst."""
    worst: dict[str, list[float]] = {}
    for layer in activations.divergence:
        for name, value in layer.metrics.items():
            worst.setdefault(name, []).append(value)
    metrics: dict[str, float] = {
        "tensors": len(activations.tensors),
        "nan": sum(tensor.range.nan_count for tensor in activations.tensors),
        "inf": sum(tensor.range.inf_count for tensor in activations.tensors),
        "saturated": sum(tensor.saturated for tensor in activations.tensors),
    }
    if activations.reference:
        metrics["compared"] = len(activations.divergence)
        metrics["nonfinite"] = sum(layer.nonfinite for layer in activations.divergence)
    for name, values in worst.items():
        metrics[f"worst.{name}"] = min(values) if higher_is_better(name) else max(values)
    return metrics


def _summary(activations: Activations, metrics: dict[str, float]) -> str:
    samples = len(activations.samples)
    parts = [f"{counted(len(activations.tensors), 'tensor')} on {counted(samples, 'sample')}"]
    parts += [f"{metrics[name]:.0f} {word}" for name, word in _COUNTED.items() if metrics[name]]
    if activations.first_nonfinite:
        parts.append(f"first in {short_name(activations.first_nonfinite)}")
    if activations.divergence:
        far = max(activations.divergence, key=lambda layer: (layer.nonfinite, layer.metrics.get("relative_rms", 0.0)))
        parts.append(_distance(far, activations.reference))
    return ", ".join(parts)


def _distance(far: LayerDivergence, reference: str) -> str:
    """Describe the tensor that is furthest from the reference's."""
    if far.nonfinite:
        return f"{far.nonfinite} of these in {short_name(far.tensor)} not in {reference}"
    if not far.metrics.get("relative_rms"):
        return f"the same numbers as in {reference}"
    noise = f"signal to noise {far.metrics['snr_db']:.1f} dB, " if "snr_db" in far.metrics else ""
    return f"furthest from {reference}: {short_name(far.tensor)}, {noise}cosine {number(far.metrics['cosine'])}"


_COUNTED = {"nan": "NaN", "inf": "infinite", "saturated": "saturated"}


def _line(tensor: CapturedTensor, layer: LayerDivergence | None) -> str:
    """Return one line of the log for a tensor."""
    values = tensor.range
    parts = [f"{number(values.minimum)} to {number(values.maximum)}, rms {number(values.rms)}"]
    counts = {"NaN": values.nan_count, "infinite": values.inf_count, "saturated": tensor.saturated}
    parts += [f"{count} {word}" for word, count in counts.items() if count]
    if layer is not None:
        parts += [f"{name} {number(layer.metrics[name])}" for name in ("cosine", "max_abs") if name in layer.metrics]
    return f"{tensor.position} {tensor.op_type} {short_name(tensor.tensor)}: {', '.join(parts)}"
