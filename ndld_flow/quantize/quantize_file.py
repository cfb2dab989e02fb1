"""Quantization of a model file: prepare, calibrate, quantize, check."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode, add_infer_metadata

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import number
from ndld_flow.models.external_files import external_files
from ndld_flow.models.files import check_model, load_model, save_model, summarize_model
from ndld_flow.models.op_signatures import is_op
from ndld_flow.precision.constraints.search_result import find_kept_nodes, first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.calibration import Ranges, calibrate, captured_output
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, prepare_model
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.samples.sample_feeds import Samples

_QUOTED = re.compile(r"'[^']*'|`[^`]*`")
_TYPES = {
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint16": QuantType.QUInt16,
    "int16": QuantType.QInt16,
    "int4": QuantType.QInt4,
}


@dataclass(frozen=True)
class QuantizedModel:
    """The result of writing a quantized model."""

    nodes: tuple[QuantizableNode, ...]
    """The quantized nodes."""
    notes: tuple[str, ...]
    """Warnings of ONNX Runtime's quantizer."""


def write_quantized(
    prepared: PreparedModel, target: Path, ranges: Ranges, settings: QuantizeSettings, exclude: Collection[str] = ()
) -> QuantizedModel:
    """Write the prepared model to `target`, quantized except for the nodes whose first outputs are in `exclude`.

    The same settings give the same bytes. Weights are read into memory. Raises `RequestError` if the quantizer fails.
    """
    with_nonfinite = ranges.with_nonfinite(prepared)
    nodes = prepared.chosen(with_nonfinite.union(exclude))
    proto = onnx.load(prepared.path)
    lines: list[str] = []
    if nodes:
        add_infer_metadata(proto)
        try:
            with captured_output() as lines:
                proto = _quantized(proto, nodes, ranges, settings)
        except (ValueError, TypeError, RuntimeError, KeyError, AttributeError, AssertionError) as error:
            raise RequestError(
                f"ONNX Runtime's quantizer cannot quantize this model: {' '.join(str(error).split())}. Exclude the "
                "nodes it names (`exclude`), or choose fewer `op_types`."
            ) from None
    model = ir.serde.deserialize_model(proto)
    model.metadata_props.pop("onnx.infer", None)
    _reconnect_unquantized(model, {node.name for node in nodes})
    model.graph.sort()  # the quantizer appends new nodes
    save_model(model, target)
    infinite = (
        [f"{len(with_nonfinite)} nodes stay unquantized: NaN or infinity on the samples"] if with_nonfinite else []
    )
    return QuantizedModel(tuple(nodes), (*infinite, *_without_repeats(lines)))


def _reconnect_unquantized(model: ir.Model, quantized: Collection[str]) -> None:
    """Reconnect unquantized nodes to their original inputs: the quantizer rounds a tensor for all its consumers.

    Outputs of quantized nodes remain rounded for all consumers: they exist in no other form.
    """
    for node in model.graph:
        rounded = node.inputs[0].producer() if is_op(node, "DequantizeLinear") and node.inputs[0] else None
        unrounded = rounded.inputs[0] if rounded is not None and is_op(rounded, "QuantizeLinear") else None
        maker = unrounded.producer() if unrounded is not None else None
        if unrounded is None or (maker is not None and maker.name in quantized) or node.outputs[0].is_graph_output():
            continue
        for user, index in tuple(node.outputs[0].uses()):
            if user.name not in quantized:
                user.replace_input_with(index, unrounded)


def _without_repeats(lines: Sequence[str]) -> list[str]:
    """Return the lines, with those that differ only in names merged into one."""
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        alike.setdefault(_QUOTED.sub("", line), []).append(line)
    return [
        group[0] if len(group) == 1 else f"{group[0]} (and {len(group) - 1} more like it)" for group in alike.values()
    ]


def _quantized(
    proto: onnx.ModelProto, nodes: Sequence[QuantizableNode], ranges: Ranges, settings: QuantizeSettings
) -> onnx.ModelProto:
    names, op_types = [node.name for node in nodes], sorted({node.op_type for node in nodes})
    shared = (settings.per_channel, settings.reduces_range)
    weights = _TYPES[settings.weights]
    if settings.mode == "dynamic":
        # The quantizer splits a Gemm into a MatMul and an Add first.
        names += [f"{node.name}_MatMul" for node in nodes if node.op_type == "Gemm"]
        op_types = sorted({*op_types, "MatMul"})
        options = {"MatMulConstBOnly": True}
        quantizer = ONNXQuantizer(
            proto,
            *shared,
            QuantizationMode.IntegerOps,
            False,
            weights,
            QuantType.QUInt8,
            None,
            names,
            [],
            op_types,
            options,
        )
    else:
        spans = {
            name: TensorData(lowest=np.float32(span.low), highest=np.float32(span.high))
            for name, span in ranges.tensors.items()
        }
        activations = _TYPES[settings.activation_type]
        quantizer = QDQQuantizer(
            proto, *shared, weights, activations, spans, names, [], op_types, _options(settings, op_types)
        )
    quantizer.quantize_model()
    quantized: onnx.ModelProto = quantizer.model.model
    return quantized


def _options(settings: QuantizeSettings, op_types: Sequence[str]) -> Mapping[str, object]:
    """Return ONNX Runtime's `extra_options`."""
    common = {"ActivationSymmetric": settings.symmetric_activations}
    if settings.target == "cpu":
        return common
    # TensorRT fuses the nodes after a layer into it and keeps biases in fp32.
    return common | {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": list(op_types)}


@dataclass(frozen=True)
class QuantizeInputs:
    """Inputs of a quantization other than the model."""

    samples: Samples | None
    """Samples to calibrate on; None for dynamic quantization."""
    search: PrecisionSearch | None
    """A search whose nodes stay unquantized."""


@dataclass(frozen=True)
class Workspace:
    """A scratch folder and a progress callback."""

    scratch: Path
    progress: Callable[[int, int, str], None]


@dataclass(frozen=True)
class Quantization:
    """The result of a quantization."""

    change: GraphChange
    nodes: tuple[QuantizableNode, ...]
    """The quantized nodes."""
    layers: int
    """Number of nodes of the operators to quantize; following nodes do not count."""
    description: str
    """Description such as `uint8 x int8, minmax on 4 samples`."""
    size_before: int
    """Bytes on disk, external data included."""
    size_after: int


def quantize_file(
    source: Path, target: Path, settings: QuantizeSettings, data: QuantizeInputs, workspace: Workspace
) -> Quantization:
    """Write `source` quantized to `target`.

    Raises `ModelError` for a model that cannot be read, converted or run, `RequestError` for settings that do not fit.
    """
    workspace.progress(0, 0, "preparing")
    exclude = found_outputs(source, data.search)
    prepared = prepare_model(source, workspace.scratch / "prepared.onnx", settings)
    ranges = _calibrated(prepared, settings, data.samples, workspace)
    workspace.progress(0, 0, "quantizing")
    written = write_quantized(prepared, target, ranges, settings, exclude)
    check_model(target)
    notes = [*prepared.notes, *(data.samples.notes if data.samples else ()), *_saturation_notes(ranges), *written.notes]
    change = GraphChange(before=prepared.before, after=summarize_model(load_model(target)), notes=tuple(notes))
    samples = f"{ranges.sample_count} sample{'s' if ranges.sample_count != 1 else ''}"
    description = f"{settings.activation_type} x {settings.weights}, {settings.method} on {samples}"
    if settings.mode == "dynamic":
        description = f"dynamic {settings.weights}"
    return Quantization(change, written.nodes, prepared.layers, description, file_bytes(source), file_bytes(target))


def found_outputs(source: Path, search: PrecisionSearch | None) -> set[str]:
    if search is None:
        return set()
    model = load_model(source)
    prepare(model, source)
    return {first_output(node) for node in find_kept_nodes(model, search)}


def _calibrated(
    prepared: PreparedModel, settings: QuantizeSettings, samples: Samples | None, workspace: Workspace
) -> Ranges:
    if samples is None:
        return Ranges({}, 0)
    count = len(samples)
    fed = ({name: feed.values for name, feed in sample.feeds.items()} for sample in samples)

    def report(done: int, total: int, what: str) -> None:
        workspace.progress(done, count, what)

    return calibrate(prepared, fed, settings, workspace.scratch, report)


def _saturation_notes(ranges: Ranges) -> list[str]:
    """Return a note on the values that the ranges saturate."""
    worst = max(ranges.tensors.items(), key=lambda item: item[1].saturated_share, default=None)
    if worst is None or worst[1].saturated_share == 0.0:
        return []
    name, span = worst
    cut = sum(each.saturated_share > 0 for each in ranges.tensors.values())
    return [
        f"{cut} of {len(ranges.tensors)} ranges saturate values, most in {name}: {span.saturated_share:.3%} of its "
        f"values are outside {number(span.low)} to {number(span.high)}"
    ]


def file_bytes(path: Path) -> int:
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in external_files(path))
