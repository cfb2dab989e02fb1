"""Quantise a model to 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from ndld_flow.artifacts.kinds import Onnx, PrecisionDocument
from ndld_flow.backends.quantizing.settings import QuantizeSettings
from ndld_flow.backends.running.sample_settings import SampleSettings
from ndld_flow.quantities import size_change
from ndld_flow.records.metric import Metric
from ndld_flow.step import Context, Reads, Result, Step

if TYPE_CHECKING:
    from ndld_flow.backends.quantizing.quantize_file import Quantization
    from ndld_flow.backends.running.sample_feeds import Samples
    from ndld_flow.records.precision_search import PrecisionSearch


class Quantize(QuantizeSettings, SampleSettings, Step[Onnx, Onnx]):
    """Quantise a model to 8 bits: Q/DQ pairs with ranges measured on samples, or weights alone.

    By default what pays is quantised: on a CPU dense convolutions and matrix products, which gain 1.3 to 2 times, and
    not depthwise convolutions and chains of small operators, which lose by it and are what accuracy suffers from;
    `min_intensity` sets the border. A `find_precision` with `precision: int8` finds layers to leave out; `found_by`
    takes its result. `sanitize` first, so that BatchNormalization is folded, and see what it cost with
    `check_accuracy`.
    """

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True

    found_by: Annotated[str | None, Reads(PrecisionDocument)] = None
    """A `find_precision` step with `precision: int8`: the nodes that it found stay as they are."""

    def needs_inputs(self) -> bool:
        return self.mode == "static"

    def library_versions(self) -> dict[str, str]:
        from ndld_flow.backends.quantizing.vnni import reduces_range

        if self.reduce_range != "auto":
            return super().library_versions()
        # The result hangs on this CPU.
        return super().library_versions() | {"weights here": "7 bits" if reduces_range(self) else "8 bits"}

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.backends.quantizing.quantize_file import Data, Rooms, quantize_file

        search = self._search(source, context)
        samples = self._samples(source, context)
        rooms = Rooms(context.scratch, context.progress)
        done = quantize_file(source.path, out / Onnx.main, self, Data(samples, search), rooms)
        for node in done.nodes:
            context.log.info("quantised: %s %s", node.op_type, node.name)
        for note in done.change.notes:
            context.log.info("%s", note)
        return _result(done)

    def _samples(self, source: Onnx, context: Context) -> Samples | None:
        from ndld_flow.backends.models.declared_inputs import model_inputs
        from ndld_flow.backends.running.sample_feeds import make_samples

        if self.mode == "dynamic":
            return None
        return make_samples(model_inputs(source.path), context.inputs, self, source.label)

    def _search(self, source: Onnx, context: Context) -> PrecisionSearch | None:
        from ndld_flow.backends.precision.found_nodes import read_found, refuse_other_precision, settings_notes
        from ndld_flow.backends.quantizing.int8_reducer import settings_of

        if self.found_by is None:
            return None
        search = read_found(context.read("found_by").path)
        refuse_other_precision(search, "int8", "quantize")
        for note in settings_notes(search, source.label, settings_of(self)):
            context.log.warning("%s", note)
        return search


def _result(done: Quantization) -> Result:
    layers = sum(not node.follows for node in done.nodes)
    return Result(
        summary=f"{done.words}: {layers} of {done.layers} layers, {size_change(done.size_before, done.size_after)}",
        metrics={
            "nodes": Metric(value=done.change.after.node_count),
            "quantized": Metric(value=len(done.nodes)),
            "layers": Metric(value=layers),
            "initializer_bytes": Metric(value=done.change.after.initializer_bytes, unit="bytes"),
            "file_bytes": Metric(value=done.size_after, unit="bytes"),
        },
        change=done.change,
    )
