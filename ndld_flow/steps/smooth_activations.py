"""Even out the channels of activations before INT8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from ndld_flow.base.quantities import counted
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps, loaded_paths
from ndld_flow.samples.sample_settings import FittedSettings
from ndld_flow.step import Context, Result, Returns, Step, metrics
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from pathlib import Path

    from ndld_flow.quantize.smoothing import Smoothing


class SmoothActivations(LoadsCustomOps, FittedSettings, Step[Onnx, Onnx]):
    """Even out the channels of the activations that MatMul and Gemm read, before INT8 (SmoothQuant).

    In transformers a few channels are far larger than the others. An activation has one scale, so these leave few of
    the 256 steps to the others. Here channels are divided by factors, and the rows of the weights are multiplied by
    them: the model computes the same function, and `quantize` loses less. Factors go into a LayerNormalization before
    the layers if nothing else reads it, else into a new Mul. Activations that would gain little stay as they are.
    """

    also_called: ClassVar[tuple[str, ...]] = ("smoothquant", "smooth")
    synonyms: ClassVar[Mapping[str, str]] = {"smooth_quant_alpha": "alpha", "migration_strength": "alpha"}

    keeps_inputs: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    adds_no_quantization: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes", "activations", "smoothed")

    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """How much of the difference between channels moves from all activations into weights: 0.5 shares it, 1 moves
    everything. By default the value with the least estimated noise is chosen for each activation."""

    @property
    def calibrates(self) -> bool:
        return True

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.sequence_runs import read_samples
        from ndld_flow.models.files import model_inputs
        from ndld_flow.quantize.calibration import Workspace
        from ndld_flow.quantize.smoothing import smooth_file
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        samples = read_samples(source.path, model_inputs(source.path), context.inputs, self, source.label)
        context.log_lines(*samples.described)
        smoothing = smooth_file(
            source.path,
            out / Onnx.main,
            self.alpha,
            (sample.arrays for sample in samples),
            OnnxruntimeRequest(custom_ops=loaded_paths(self.custom_ops)),
            Workspace(context.scratch, context.progress, context.log),
        )
        for each in smoothing.activations:
            what = f"alpha {each.alpha:g}" if each.alpha else "unchanged"
            context.log.info("%s: %s, estimated noise x %.3g, for %s", each.name, what, each.noise_ratio, each.layers)
        return _result(smoothing)


def _result(smoothing: Smoothing) -> Result:
    found = [each for each in smoothing.activations if each.alpha]
    layers = sum(len(each.layers) for each in found)
    of = counted(len(smoothing.activations), "activation")
    return Result(
        summary=f"{len(found)} of {of} smoothed, for {counted(layers, 'layer')}",
        metrics={
            "nodes": smoothing.change.after.node_count,
            "activations": len(smoothing.activations),
            "smoothed": len(found),
        },
        change=smoothing.change,
    )
