"""Quantization of a model file: prepare, calibrate, quantize, check.

Other nodes may read the weights of a quantized layer in floats. Both forms would take more bytes than the source, so
the integers alone are stored, and nodes in the main graph make floats of them: Cast and Mul, which runtimes compute
when they load a model. ONNX Runtime computes a DequantizeLinear in every inference, which took a third of the time of
LSTMs in Loops. TensorRT reads integers of 8 bits in DequantizeLinear only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnxruntime.quantization.quant_utils import TENSOR_NAME_QUANT_SUFFIX

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted, number, size
from ndld_flow.base.text import first_of
from ndld_flow.graph.model_tool import copy_model
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.element_types import is_op
from ndld_flow.models.external_files import model_bytes
from ndld_flow.models.files import load_model, save_model, summarize_model
from ndld_flow.models.nodes import UniqueNames, add_initializer
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.rules import find_kept_nodes, first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.calibration import Ranges, Workspace, calibrate, digest_values, recall_measured
from ndld_flow.quantize.isolated_layers import COPIED, TURNED, WIDENED, IsolatedLayers, WeightRole
from ndld_flow.quantize.onnxruntime_quantizer import quantize_by_onnxruntime
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, SkippedLayer, prepare_model
from ndld_flow.quantize.settings import SKIPPED, QuantizeSettings, SkipReason, Target
from ndld_flow.quantize.weight_only import write_blocks
from ndld_flow.records.measurement import NOT_SMALLER, POOR_CALIBRATION
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import Session, SessionRequest
from ndld_flow.samples.sample_feeds import Samples

_QUOTED = re.compile(r"'[^']*'|`[^`]*`")
_INTEGERS = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)

_LARGE_BYTES = 64 * 2**10
"""Weights from this size on are not stored in two forms where that makes a file larger than its source."""
_NAMED = 10
"""Maximum number of layers that a note names for each reason; the log has all."""


@dataclass(frozen=True)
class QuantizedModel:
    """The result of writing a quantized model."""

    nodes: tuple[QuantizableNode, ...]
    """The quantized nodes."""
    skipped: tuple[SkippedLayer, ...]
    """All other layers."""
    kept_weights: Mapping[str, int]
    """Weight of quantized nodes that other nodes read in floats too -> its bytes."""
    notes: tuple[str, ...]
    """Warnings of ONNX Runtime's quantizer."""


def write_quantized(
    prepared: PreparedModel,
    target: Path,
    ranges: Ranges,
    settings: QuantizeSettings,
    exclude: Mapping[str, SkipReason],
    workspace: Workspace,
) -> QuantizedModel:
    """Write the prepared model to `target`, quantized except for the nodes whose first outputs are in `exclude`.

    The prepared model in memory is changed. The same settings give the same bytes. Memory does not grow with the
    weights. Raises `RequestError` if the quantizer fails.
    """
    nonfinite: dict[str, SkipReason] = dict.fromkeys(ranges.with_nonfinite(prepared), "not finite")
    reasons = {**nonfinite, **exclude}
    nodes = prepared.chosen(reasons)
    by_name = {node.name: node for node in prepared.model.graph.all_nodes()}
    layers = IsolatedLayers(prepared.model, settings, [by_name[node.name] for node in nodes])
    layers.isolate()
    model, lines, blocks = layers.model, list[str](), workspace.scratch / "blocks.data"
    if settings.mode == "weight_only":
        write_blocks(model, layers.nodes, settings, blocks, workspace.progress)
    elif nodes:
        model, lines = quantize_by_onnxruntime(layers, ranges)
        unchanged = {
            each.name for each in _skipped(prepared, reasons) if each.reason == "excluded" or each.output in reasons
        }
        lines = [*_without_repeats(lines), *_shared_notes(share_integers(model, layers, unchanged))]
    untouched = {node.name for node in model.graph.all_nodes() if not _is_quantized(node)}
    left: dict[str, SkipReason] = {
        node.output: "unknown" for node in nodes if node.name in untouched and not node.follows
    }
    _remove_unread_constants(model)
    model.graph.sort()  # the quantizer appends new nodes
    save_model(model, target)
    blocks.unlink(missing_ok=True)
    done = tuple(node for node in nodes if node.output not in left)
    tensors = {name: value.const_value for graph in model.graphs() for name, value in graph.initializers.items()}
    read = sorted({name for node in done for name in node.weights})
    kept = {name: tensor.nbytes for name in read if (tensor := tensors.get(name)) is not None}
    return QuantizedModel(done, tuple(_skipped(prepared, {**reasons, **left})), kept, tuple(lines))


def _shared_notes(weights: Sequence[str]) -> list[str]:
    """Return a note on the weights that are stored in integers alone."""
    if not weights:
        return []
    return [
        f"{counted(len(weights), 'weight')} stored in integers alone, and so rounded for the other nodes too that read "
        f"them in floats: {first_of(weights, _NAMED)}"
    ]


def _is_quantized(node: ir.Node) -> bool:
    """Return whether a node is no operator of the source, or reads integers of 8 bits or fewer."""
    values = [value for value in node.inputs if value is not None]
    return node.domain != "" or any(
        is_op(value.producer(), "DequantizeLinear")
        or value.dtype in _INTEGERS
        # The quantizer does not write the types of what its integer operators compute.
        or (value.producer() is not None and (value.name or "").endswith(TENSOR_NAME_QUANT_SUFFIX))
        for value in values
    )


def _skipped(prepared: PreparedModel, reasons: Mapping[str, SkipReason]) -> Iterator[SkippedLayer]:
    yield from prepared.skipped
    for node in prepared.nodes:
        if not node.follows and node.output in reasons:
            yield SkippedLayer(node.output, node.name, node.op_type, reasons[node.output])


def _remove_unread_constants(model: ir.Model) -> None:
    """Remove constants whose last reader was quantized."""
    for graph in model.graphs():
        for name, value in tuple(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]


def _without_repeats(lines: Sequence[str]) -> list[str]:
    """Return the lines, with those that differ only in names merged into one."""
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        alike.setdefault(_QUOTED.sub("", line), []).append(line)
    return [
        group[0] if len(group) == 1 else f"{group[0]} (and {len(group) - 1} more like it)" for group in alike.values()
    ]


Place = Callable[[PreparedModel, Ranges, Mapping[str, SkipReason]], Mapping[str, SkipReason]]
"""Return the layers to leave out, by their first outputs, in addition to those that are given. It does not change the
prepared model in memory."""


@dataclass(frozen=True)
class QuantizeInputs:
    """Inputs of a quantization other than the model."""

    samples: Samples | None
    """Samples to calibrate on; None for dynamic quantization."""
    search: PrecisionSearch | None
    """A search whose nodes stay unquantized."""
    custom_ops: Sequence[str] = ()
    """Paths of libraries with custom operators."""
    runtime: SessionRequest | None = None
    """Runs the model for calibration; None for ONNX Runtime."""
    place: Place | None = None
    """Chooses layers to leave out; if it leaves none to quantize, the result is the source, byte for byte."""

    @property
    def run_by(self) -> SessionRequest:
        return self.runtime or OnnxruntimeRequest(custom_ops=self.custom_ops)


@dataclass(frozen=True)
class Quantization:
    """The result of a quantization."""

    change: GraphChange
    nodes: tuple[QuantizableNode, ...]
    """The quantized nodes."""
    layers: int
    """Number of nodes of the operators to quantize; following nodes do not count."""
    skipped: tuple[SkippedLayer, ...]
    """Layers that are not quantized, with the reason."""
    warnings: tuple[str, ...]
    """Doubts about the calibration and the result."""
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
    exclude: dict[str, SkipReason] = dict.fromkeys(found_outputs(source, data.search), "found by search")
    prepared = prepare_model(source, workspace.scratch / "prepared.onnx", settings)
    warnings: list[str] = []
    ranges = _calibrated(source, prepared, settings, data, workspace, warnings)
    if data.place is not None:
        exclude |= data.place(prepared, ranges, exclude)
        prepared = reopened(prepared)  # as the models that were measured, so that the bytes are the same
    workspace.progress(0, 0, "quantizing")
    if not prepared.chosen(exclude):
        written = QuantizedModel((), tuple(_skipped(prepared, exclude)), {}, ())
        if data.place is None:
            check_quantized(written.nodes, written.skipped, settings)
        copy_model(source, target.parent)
    else:
        written = write_quantized(prepared, target, ranges, settings, exclude, workspace)
        twice = {name for name, count in written.kept_weights.items() if count >= _LARGE_BYTES}
        if twice and model_bytes(target) > model_bytes(source):
            for node in written.nodes:
                if not twice.isdisjoint(node.weights):
                    exclude[node.output] = "shared weight"
            prepared = prepare_model(source, prepared.path, settings)  # the other one was changed
            written = write_quantized(prepared, target, ranges, settings, exclude, workspace)
        check_quantized(written.nodes, written.skipped, settings)
    model = load_model(target)
    check_changed_model(source, target, workspace.log, model)
    if written.nodes and data.samples is not None:
        workspace.progress(0, 0, "checking")
        _check_finite(source, target, data.samples, data.run_by)
    sizes = model_bytes(source), model_bytes(target)
    warnings += _size_warnings(written, *sizes)
    notes = (
        *warnings,
        *prepared.notes,
        *(data.samples.notes if data.samples else ()),
        *_saturation_notes(ranges),
        *written.notes,
        *skip_notes(written.skipped),
    )
    change = GraphChange(before=prepared.before, after=summarize_model(model), notes=notes)
    return Quantization(
        change, written.nodes, prepared.layers, written.skipped, tuple(warnings), _description(settings, ranges), *sizes
    )


def _check_finite(source: Path, target: Path, samples: Samples, runtime: SessionRequest) -> None:
    """Raise `ModelError` if a value of an output is not finite on a sample on which the source's is."""
    with closing(runtime.open(target)) as session:
        for number, sample in enumerate(samples, start=1):
            feeds = sample.arrays
            computed = _float_outputs(session, feeds)
            if all(np.isfinite(values).all() for values in computed.values()):
                continue
            with closing(runtime.open(source)) as reference:
                right = _float_outputs(reference, feeds)
            lost = [name for name, values in computed.items() if _is_less_finite(values, right[name])]
            if lost:
                raise ModelError(
                    f"on sample {number} the quantized model computes NaN or infinity in {first_of(lost, _NAMED)}, "
                    "where the source does not: a weight or an activation is too large for 8 bits. Leave its layer out "
                    "(`exclude`); `inspect_activations` shows which."
                )


def _float_outputs(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    binding = session.bind(feeds)
    binding.run()
    found = {name: values for name, values in binding.outputs().items() if values is not None}
    return {name: values for name, values in found.items() if values.dtype.kind == "f"}


def _is_less_finite(values: Array, right: Array) -> bool:
    if values.shape != right.shape:
        return not np.isfinite(values).all() and bool(np.isfinite(right).all())
    return bool((~np.isfinite(values) & np.isfinite(right)).any())


def reopened(prepared: PreparedModel) -> PreparedModel:
    """Return a prepared model that `write_quantized` may change, read from its file."""
    return replace(prepared, model=load_model(prepared.saved()))


def _description(settings: QuantizeSettings, ranges: Ranges) -> str:
    if settings.mode == "dynamic":
        return f"dynamic {settings.weights}"
    if settings.mode == "weight_only":
        return f"{settings.weights} weights in blocks of {settings.block_size}, {settings.algorithm}"
    samples = f"{ranges.sample_count} sample{'s' if ranges.sample_count != 1 else ''}"
    types = f"{settings.activation_type} x {settings.weights}"
    operators = " in integer operators" if settings.format == "qoperator" else ""
    return f"{types}{operators}, {settings.method} on {samples}"


def check_quantized(
    nodes: Sequence[QuantizableNode], skipped: Sequence[SkippedLayer], settings: QuantizeSettings
) -> None:
    """Raise `RequestError` if nothing was quantized, unless the settings allow it."""
    if nodes or settings.allow_empty:
        return
    reasons = "; ".join(skip_notes(skipped)) or "the model has no layers"
    hint = "`allow_empty: true` allows that"
    if any(layer.reason == "replaceable weight" for layer in skipped):
        hint = "Insert this step before: `own: {step: edit, operations: [{remove_initializer_inputs: {}}]}`"
    if settings.mode != "dynamic" and any(layer.op_type == "LSTM" for layer in skipped):
        hint = "`mode: dynamic` quantizes LSTM, too"
    raise RequestError(f"nothing was quantized: {reasons}. {hint}.")


def skip_notes(skipped: Sequence[SkippedLayer]) -> list[str]:
    """Return a note for each reason, with the names of the layers."""
    groups: dict[SkipReason, list[str]] = {}
    for layer in skipped:
        groups.setdefault(layer.reason, []).append(f"{layer.op_type} {layer.name}")
    return [
        f"{len(names)} layer{'s' * (len(names) > 1)} not quantized ({reason}): {SKIPPED[reason]}: "
        f"{first_of(names, _NAMED)}"
        for reason, names in groups.items()
    ]


def _size_warnings(written: QuantizedModel, before: int, after: int) -> list[str]:
    """Return a warning with the reason if the result is not smaller than the source."""
    if after < before or not written.nodes:
        return []
    why = "scales and Q/DQ nodes take more bytes than the weights save"
    tables = {name for node in written.nodes if node.op_type == "Gather" for name in node.weights}
    twice = sorted(tables & {name for node in written.nodes if node.op_type != "Gather" for name in node.weights})
    if twice:
        why = f"tables that layers read too are stored in blocks for each of them: {first_of(twice, _NAMED)}"
    if written.kept_weights:
        why = f"other nodes read the weights {first_of(list(written.kept_weights), _NAMED)} in floats too"
    return [f"{NOT_SMALLER} ({size(before)} -> {size(after)}): {why}"]


def found_outputs(source: Path, search: PrecisionSearch | None) -> set[str]:
    if search is None:
        return set()
    model = load_model(source)
    prepare(model, source)
    return {first_output(node) for node in find_kept_nodes(model, search)}


_FEW_SAMPLES = 8
"""Fewer samples rarely span the ranges of a model."""


def _calibrated(
    source: Path,
    prepared: PreparedModel,
    settings: QuantizeSettings,
    data: QuantizeInputs,
    workspace: Workspace,
    warnings: list[str],
) -> Ranges:
    """Measure the ranges, and add doubts about the samples to `warnings`."""
    samples = data.samples
    if samples is None:
        return Ranges({}, 0)
    digests: list[bytes] = []
    generated: set[str] = set()
    for sample in samples:
        generated.update(name for name, feed in sample.feeds.items() if not feed.is_from_file)
        digests.append(digest_values(sample.arrays))

    def report(done: int, total: int, what: str) -> None:
        workspace.progress(done, len(digests), what)

    fed = (sample.arrays for sample in samples)
    calibrating = replace(workspace, progress=report)
    known = recall_measured(source, digests, settings, data.run_by)
    ranges = calibrate(prepared, fed, settings, data.run_by, calibrating, known)
    if ranges.sample_count:
        warnings += _sample_warnings(ranges.sample_count, len(set(digests)), sorted(generated))
    return ranges


def _sample_warnings(count: int, different: int, generated: Sequence[str]) -> Iterator[str]:
    """Yield doubts about the ranges that were measured on the samples."""
    if generated:
        yield (
            f"the ranges are those of generated values of {first_of(generated, _NAMED)}, not of data: real inputs "
            f"may exceed them: {POOR_CALIBRATION}"
        )
    if count > 1 and different == 1:
        yield f"all {count} samples are equal, so the ranges are those of one sample: {POOR_CALIBRATION}"
    elif count < _FEW_SAMPLES:
        yield (
            f"calibrated on {count} sample{'s' * (count > 1)}, and fewer than {_FEW_SAMPLES} rarely span the ranges of "
            f"a model: {POOR_CALIBRATION}"
        )


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


_UNDONE: Mapping[str, tuple[str, Mapping[str, int | Sequence[int]]] | None] = {
    COPIED: None,
    WIDENED: ("Cast", {"to": int(ir.DataType.FLOAT16)}),
    TURNED: ("Transpose", {"perm": [1, 0]}),
}
"""Change of a weight -> the node that undoes it."""


def share_integers(model: ir.Model, layers: IsolatedLayers, kept: Collection[str]) -> list[str]:
    """Let the other readers of quantized weights read the integers, in place; return the names of the weights.

    A weight stays in floats besides if one of its readers is among the nodes `kept`, which are to compute as in the
    source, or is a Gather: it reads some rows of a table.
    """
    constants = {value.name or "": value for graph in model.graphs() for value in graph.initializers.values()}
    writer, shared = _Writer(model.graph, UniqueNames(model), layers.settings.target), list[str]()
    for owned, role in layers.roles.items():
        changes, source = list[str](), owned
        while source in layers.origins:
            source, change = layers.origins[source]
            changes.append(change)
        weight = constants.get(source.name or "")
        if weight is None or f"{owned.name}_quantized" not in constants or not changes or not role.by_extremes:
            continue
        if _UNDONE.keys() >= set(changes) and _may_be_integers(weight, kept):
            integers, scale, zero = (constants[f"{owned.name}_{part}"] for part in ("quantized", "scale", "zero_point"))
            floats = writer.floats(integers, scale, zero, role)
            for step in filter(None, map(_UNDONE.__getitem__, changes)):
                floats = writer.add(step[0], [floats], step[1])
            floats.type, floats.shape = weight.type, weight.shape
            ir.convenience.replace_all_uses_with(weight, floats)
            shared.append(weight.name or "")
    return shared


def _may_be_integers(weight: ir.Value, kept: Collection[str]) -> bool:
    if not weight.uses() or weight.is_graph_input() or weight.is_graph_output():
        return False
    return all(not is_op(node, "Gather") and node.name not in kept for node in _readers(weight))


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, directly or transposed."""
    for node, _ in value.uses():
        yield node
        if is_op(node, "Transpose"):
            yield from _readers(node.outputs[0])


class _Writer:
    """Writes nodes into the main graph that make floats of integers."""

    def __init__(self, main: ir.Graph, names: UniqueNames, target: Target) -> None:
        self._main, self._names, self._target = main, names, target

    def floats(self, integers: ir.Value, scale: ir.Value, zero_point: ir.Value, role: WeightRole) -> ir.Value:
        factors, zeros = scale.const_value, zero_point.const_value
        assert factors is not None and zeros is not None and integers.shape is not None
        if self._target == "tensorrt" or zeros.dtype.bitwidth < 8 or zeros.numpy().any():
            attributes = {} if role.axis is None else {"axis": role.axis}
            return self.add("DequantizeLinear", [integers, scale, zero_point], attributes)
        shape = [-1 if axis == role.axis else 1 for axis in range(len(integers.shape))]
        factor = ir.tensor(factors.numpy().reshape(shape), name=self._names.value(f"{scale.name}_factor"))
        broadcast = add_initializer(self._main, factor)
        return self.add("Mul", [self.add("Cast", [integers], {"to": int(ir.DataType.FLOAT)}), broadcast], {})

    def add(self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int | Sequence[int]]) -> ir.Value:
        name = self._names.node(f"{inputs[0].name}_{op_type}")
        items = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()]
        output = ir.Value(name=self._names.value(f"{name}_out"))
        self._main.append(ir.Node("", op_type, inputs, items, outputs=[output], name=name))
        return output
