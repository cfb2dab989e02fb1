"""Models in int8 for the precision search: models with some nodes kept, and the error of quantizing each node on its
own.

To measure the errors, the prepared model gets a quantized copy of each quantized node; a selector input chooses which
copy replaces its node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile, tee
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ndld_flow.accuracy.inside.capture import BUDGET_BYTES, capture_part, in_parts, tensor_bytes, tensors_of
from ndld_flow.accuracy.inside.layer_meters import LayerAgreement
from ndld_flow.base.errors import ModelError
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.nodes import UniqueNames, add_initializer, nodes_named
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.rules import find_kept_nodes, first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.precision_search.evidence import NO_ERROR, Int8Error, Spread
from ndld_flow.precision_search.reducers import searched_nodes
from ndld_flow.quantize.calibration import Workspace, calibrate, digest_values, recall_measured
from ndld_flow.quantize.onnxruntime_quantizer import QuantizerError
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode, prepare_model
from ndld_flow.quantize.quantize_file import reopened, write_quantized
from ndld_flow.quantize.settings import QuantizeSettings, SkipReason
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.sample_feeds import Samples

_ROUNDING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class QuantizedCopies:
    """A model in which each quantized node has a copy that reads the same values and rounds them."""

    path: Path
    copies: Mapping[str, str]
    """First output of a node -> that of its copy."""
    selector: str
    """Name of an int64 input: the index in `copies` of the copy that replaces its node, or -1 for none."""
    outputs: Mapping[str, str]
    """Output of the model -> the tensor that holds it while the selected copy is in effect."""
    lost: Mapping[str, float]
    """First output of a node -> share of its nonzero weights that round to 0."""


def write_copies(prepared: Path, nodes: Iterable[QuantizableNode], quantized: Path, target: Path) -> QuantizedCopies:
    """Write the model to `target` with copies of the quantized `nodes`.

    `quantized` has Q/DQ pairs; nodes that have integer operators instead get no copies. Raises `ModelError`.
    """
    model = load_model(prepared)
    maker = _copied(model, nodes, quantized)
    outputs = maker.make_selectable()
    model.graph.sort()
    save_model(model, target)
    copies = {value.name or "": copy.name or "" for value, copy in maker.copies.items()}
    return QuantizedCopies(target, copies, maker.selector.name or "", outputs, maker.lost)


def _copied(model: ir.Model, nodes: Iterable[QuantizableNode], quantized: Path) -> _CopyMaker:
    """Add the Q/DQ nodes and the quantized `nodes` of a file to the prepared model, which does not read them yet."""
    wanted, graph = {node.name for node in nodes}, load_model(quantized).graph
    maker = _CopyMaker(model, absorbed_nodes(model.graph, graph))
    for node in graph:
        if is_op(node, *_ROUNDING):
            maker.copy(node)
        elif node.name in wanted and any(v and is_op(v.producer(), "DequantizeLinear") for v in node.inputs):
            maker.add_copy(node)
    return maker


def absorbed_nodes(prepared: ir.Graph, quantized: ir.Graph) -> list[ir.Node]:
    """Return the Relu and Clip nodes that a quantized graph lacks: the rounding of what they read does their work."""
    names = {node.name for node in quantized}
    return [node for node in prepared if node.name not in names and is_op(node, "Relu", "Clip")]


def write_with_floats(prepared: Path, nodes: Iterable[QuantizableNode], quantized: Path, target: Path) -> None:
    """Write the model to `target` with only these of its quantized nodes quantized, as the quantizer would, but faster.

    Raises `ModelError`.
    """
    model = load_model(prepared)
    _copied(model, nodes, quantized).use_all()
    RemoveUnusedNodesPass()(model)
    model.graph.sort()
    save_model(model, target)


def _lost(weight: ir.Value | None, rounded: ir.Value | None) -> float:
    """Return the share of a weight's nonzero values that round to 0; 0 for an input that is not a weight."""
    source = rounded.producer() if rounded is not None else None
    if weight is None or weight.const_value is None or source is None or not is_op(source, "DequantizeLinear"):
        return 0.0
    whole, zero = source.inputs[0], source.inputs[2] if len(source.inputs) > 2 else None
    if whole is None or whole.const_value is None or not np.any(values := weight.const_value.numpy()):
        return 0.0
    integers = whole.const_value.numpy()
    zeros = zero.const_value.numpy() if zero is not None and zero.const_value else np.zeros(())
    if zeros.ndim:  # one for each channel
        shape = [1] * integers.ndim
        shape[source.attributes.get_int("axis", 1)] = -1
        zeros = zeros.reshape(shape)
    return float(np.count_nonzero((integers == zeros) & (values != 0)) / np.count_nonzero(values))


class _CopyMaker:
    """Copies nodes of the quantized model to the prepared one, in their order."""

    def __init__(self, model: ir.Model, absorbed: Sequence[ir.Node]) -> None:
        self._absorbed = absorbed
        self.copies: dict[ir.Value, ir.Value] = {}
        self.lost: dict[str, float] = {}
        self._graph = model.graph
        self._names = UniqueNames(model)
        self._nodes = {node.name: node for node in model.graph}
        self._values: dict[str, ir.Value] = dict(model.graph.initializers)
        self._values.update({value.name or "": value for value in model.graph.inputs})
        self._values_of_copies: dict[ir.Value, ir.Value] = {}
        self._copied_nodes: set[ir.Node] = set()
        int64 = ir.TensorType(ir.DataType.INT64)
        self.selector = ir.Value(name=self._names.value("which"), shape=ir.Shape([]), type=int64)

    def add_copy(self, node: ir.Node) -> None:
        """Copy a quantized node that is in both models."""
        own = self._nodes[node.name]
        self.copies[own.outputs[0]] = self.copy(node).outputs[0]
        lost = [_lost(*pair) for pair in zip(own.inputs, node.inputs, strict=True)]
        self.lost[own.outputs[0].name or ""] = max(lost, default=0.0)

    def make_selectable(self) -> dict[str, str]:
        """Insert the selection of copies. Returns output of the model -> the tensor that holds it while a copy is
        selected."""
        self._graph.inputs.append(self.selector)
        chosen: dict[str, str] = {}
        for number, (value, copy) in enumerate(self.copies.items()):
            readers = [(node, index) for node, index in value.uses() if node not in self._copied_nodes]
            name = self._names.value(f"number_{number}")
            own = add_initializer(self._graph, ir.tensor(number, dtype=ir.DataType.INT64, name=name))
            this = self._add("Equal", [self.selector, own], f"{value.name}_is_chosen")
            either = self._add("Where", [this, copy, value], f"{value.name}_chosen")
            for node, index in readers:
                node.replace_input_with(index, either)
            chosen[value.name or ""] = either.name or ""
        names = [value.name or "" for value in self._graph.outputs]
        return {name: chosen.get(name, name) for name in names}

    def use_all(self) -> None:
        """Let all nodes read the copies: those in floats read rounded outputs, which exist in no other form."""
        absorbed = {node.inputs[0]: node.outputs[0] for node in self._absorbed}
        for value, limited in absorbed.items():
            for node, index in tuple(value.uses()) if value is not None and value not in self.copies else ():
                if node in self._copied_nodes:  # its layer is in floats
                    node.replace_input_with(index, limited)
        for value, copy in self.copies.items():
            readers = list(value.uses())
            roundings = [node for node, _ in readers if node in self._copied_nodes and is_op(node, "QuantizeLinear")]
            rounded = next((user.outputs[0] for node in roundings for user, _ in node.outputs[0].uses()), copy)
            for node, index in readers:
                node.replace_input_with(index, copy if node in self._copied_nodes else rounded)
            for own in (value, absorbed.get(value)):
                if own is not None:
                    self._replace(own, rounded)

    def _replace(self, value: ir.Value, other: ir.Value) -> None:
        """Let all nodes, and the outputs of the model, read another value."""
        other.type, other.shape = value.type, value.shape
        is_output = value.is_graph_output()
        value.replace_all_uses_with(other, replace_graph_outputs=True)
        if is_output:
            name, value.name = value.name, self._names.value(f"{value.name}_unread")
            other.name = name

    def copy(self, node: ir.Node) -> ir.Node:
        """Copy a node; the copy reads copies of Q/DQ nodes, and otherwise outputs of the prepared model's own nodes."""
        outputs = [ir.Value(name=value.name and self._names.value(f"{value.name}_alone")) for value in node.outputs]
        inputs = [None if value is None else self._counterpart(value) for value in node.inputs]
        name = self._names.node(f"{node.name or node.op_type}_alone")
        attributes = node.attributes.values()
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs, name=name)
        self._graph.append(copy)
        self._copied_nodes.add(copy)
        if is_op(node, *_ROUNDING):
            self._values_of_copies.update(zip(node.outputs, outputs, strict=True))
        return copy

    def _counterpart(self, value: ir.Value) -> ir.Value:
        """Return the prepared model's counterpart of a value; names of nodes are the same, names of outputs may
        differ."""
        if value in self._values_of_copies:
            return self._values_of_copies[value]
        producer = value.producer()
        if producer is not None:
            return self._nodes[producer.name].outputs[value.index() or 0]
        name = value.name or ""
        if name not in self._values:
            copy = ir.Value(name=self._names.value(value.name or ""), shape=value.shape, type=value.type)
            copy.const_value = value.const_value
            self._graph.register_initializer(copy)
            self._values[name] = copy
        return self._values[name]

    def _add(self, op_type: str, inputs: Sequence[ir.Value], wish: str) -> ir.Value:
        output = ir.Value(name=self._names.value(wish))
        self._graph.append(ir.Node("", op_type, inputs, outputs=[output], name=self._names.node(wish)))
        return output


_MOST_FOLLOWED = 64
"""Number of nodes, those with the largest errors, whose effect on the outputs is measured: each takes a run on one
sample."""
_NO_COPY = np.array(-1, np.int64)


def int8_errors(
    copies: QuantizedCopies,
    samples: Collection[Mapping[str, Array]],
    settings: SessionRequest,
    time_is_up: Callable[[], bool] = lambda: False,
) -> dict[str, Int8Error]:
    """Return first output of a node -> its error, for each node that has a copy.

    A node's own error is measured on all samples, in one run each or more if the values exceed memory; its effect on
    the outputs on the first sample, until `time_is_up`. Raises `ModelError` if the model does not run.
    """
    first = next(iter(samples), None)
    if first is None:
        return {}
    quick = settings.in_floats()
    own = _own_errors(copies, samples, quick)
    if not own:
        return {}
    worst = sorted(own, key=lambda name: own[name].metrics().get("relative_rms", math.inf), reverse=True)[
        :_MOST_FOLLOWED
    ]
    followed = takewhile(lambda _: not time_is_up(), worst)
    output_errors = _output_errors(copies, first, followed, quick)
    mean = sum(error**2 for error in output_errors.values()) / max(len(output_errors), 1)
    shares = {name: error**2 / mean if mean else 0.0 for name, error in output_errors.items()}
    return {
        name: Int8Error(
            _relative_rms(agreement), output_errors.get(name), shares.get(name, 0.0), copies.lost.get(name, 0.0)
        )
        for name, agreement in own.items()
    }


def _own_errors(
    copies: QuantizedCopies, samples: Collection[Mapping[str, Array]], settings: SessionRequest
) -> dict[str, LayerAgreement]:
    first = {**next(iter(samples)), copies.selector: _NO_COPY}
    places = [place for place in tensors_of(copies.path) if place.name in copies.copies and place.can_be_captured]
    sizes = {name: 2 * size for name, size in tensor_bytes(copies.path, places, first, settings).items()}
    agreements = {name: LayerAgreement() for name in sizes}
    for part in in_parts(sizes, BUDGET_BYTES):
        wanted = [*part, *(copies.copies[name] for name in part)]
        every = ({**feeds, copies.selector: _NO_COPY} for feeds in samples)
        for arrays in capture_part(copies.path, wanted, every, settings):
            for name in part:
                agreements[name].add(arrays[name], arrays[copies.copies[name]])
    return agreements


def _output_errors(
    copies: QuantizedCopies, feeds: Mapping[str, Array], names: Iterable[str], settings: SessionRequest
) -> dict[str, float]:
    """Return first output of a node -> the error of the worst output with its copy selected; 1 if that has NaN, or
    another shape, as lists of boxes or tokens have."""
    computed = {place.name for place in tensors_of(copies.path) if place.can_be_captured}
    outputs = [name for name in dict.fromkeys(copies.outputs.values()) if name in computed]
    if not outputs:
        return {}
    numbers = {name: number for number, name in enumerate(copies.copies)}
    run, named = tee(names)
    chosen = chain([-1], (numbers[name] for name in run))
    fed = ({**feeds, copies.selector: np.array(number, np.int64)} for number in chosen)
    runs = capture_part(copies.path, outputs, fed, settings)
    exact = next(runs)
    return {name: _worst_of(exact, arrays) for arrays, name in zip(runs, named, strict=True)}


def _worst_of(exact: Mapping[str, Array], arrays: Mapping[str, Array]) -> float:
    errors = [0.0]
    for name, array in exact.items():
        if array.dtype.kind != "f":
            continue
        if arrays[name].shape != array.shape:
            return 1.0
        agreement = LayerAgreement()
        agreement.add(array, arrays[name])
        errors.append(1.0 if agreement.nonfinite else _relative_rms(agreement))
    return max(errors)


def _relative_rms(agreement: LayerAgreement) -> float:
    return agreement.metrics().get("relative_rms", 0.0)


@dataclass(frozen=True)
class _AllInt8:
    """The model with all that can be quantized in INT8."""

    path: Path
    absorbed: Mapping[str, str]
    """First output of a Relu or Clip that it lacks -> that of the layer whose rounding does its work."""

    def splits_a_layer(self, kept: Collection[str]) -> bool:
        """Return whether such a Relu is kept without its layer: then the layer's range is another."""
        return any(maker not in kept for output, maker in self.absorbed.items() if output in kept)


class Int8Reducer:
    """Calibrates once; keeps nodes in addition to `keep` (names and globs) and those that the settings exclude.

    Raises `ModelError` for a model that cannot be read or run, `RequestError` for a name that matches no node.
    """

    def __init__(
        self,
        source: Path,
        settings: QuantizeSettings,
        keep: Sequence[str],
        samples: Samples,
        scratch: Path,
        custom_ops: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._scratch = scratch
        self._settings = settings
        self._prepared = prepare_model(source, scratch / "prepared.onnx", settings)
        fed = (sample.arrays for sample in samples)
        runtime = OnnxruntimeRequest(custom_ops=custom_ops)
        known = recall_measured(source, [digest_values(sample.arrays) for sample in samples], settings, runtime)
        self._ranges = calibrate(self._prepared, fed, settings, runtime, Workspace(scratch), known)
        model = load_model(source)
        prepare(model, source)
        self.nodes = searched_nodes(model)
        kept = nodes_named(model, keep, "keep").items()
        kept_by_name = {first_output(node): f"keep {pattern!r}" for pattern, nodes in kept for node in nodes}
        infinite = dict.fromkeys(self._ranges.with_nonfinite(self._prepared), "NaN or infinity on the samples")
        self._kept = {**kept_by_name, **infinite}
        able = {node.output for node in self._prepared.chosen()}
        changing = {node.output for node in self._prepared.chosen(self._kept)}
        self.candidates = tuple(node.position for node in self.nodes if node.output in changing)
        self.always_kept: Mapping[int, str] = {
            node.position: self._kept.get(node.output, "its inputs are kept")
            for node in self.nodes
            if node.output in able - changing
        }

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        return settings_of(self._settings)

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model with the nodes `kept` unquantized. Raises `ModelError` if these cannot be left alone."""
        outputs = [node.output for node in self.nodes if node.position in kept]
        try:
            if self._all_int8 is not None and not self._all_int8.splits_a_layer(outputs):
                nodes = self._prepared.chosen(self._excluded(outputs))
                write_with_floats(self._prepared.saved(), nodes, self._all_int8.path, target)
            else:
                self._write(outputs, target)
        except QuantizerError as error:  # another selection may be possible
            raise ModelError(str(error)) from None

    @cached_property
    def _all_int8(self) -> _AllInt8 | None:
        """The model with nothing kept, from which others are made; None if the quantizer fails on it, or has rewritten
        layers, as those in float16, or into integer operators."""
        path = self._scratch / "all_int8.onnx"
        try:
            self._write([], path)
        except QuantizerError:
            return None
        prepared, quantized = load_model(self._prepared.saved()).graph, load_model(path).graph
        if self._settings.format != "qdq" or not _keeps_layers(prepared, quantized):
            return None
        lacking = absorbed_nodes(prepared, quantized)
        makers = ((node, node.inputs[0].producer()) for node in lacking if node.inputs[0] is not None)
        return _AllInt8(path, {first_output(node): first_output(maker) for node, maker in makers if maker is not None})

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as `quantize` with `found_by` does."""
        model = load_model(self._source)
        prepare(model, self._source)
        self._write([first_output(node) for node in find_kept_nodes(model, search)], target)

    def int8_errors(
        self,
        samples: Collection[Mapping[str, Array]],
        settings: SessionRequest,
        scratch: Path,
        time_is_up: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Int8Error]:
        """Return first output of a node -> its own error; empty for integer operators and for layers that were
        rewritten."""
        nodes = self._prepared.chosen(self._kept)
        if self._all_int8 is None:
            return {}
        copies = write_copies(self._prepared.saved(), nodes, self._all_int8.path, scratch / "copies.onnx")
        errors = int8_errors(copies, samples, settings, time_is_up)
        # A node without a copy was fused into the one before it, whose error includes its rounding.
        if not errors:
            return {}
        found: dict[str, Int8Error] = {}
        for node in nodes:
            ranges = {name: self._ranges.tensors[name] for name in node.reads if name in self._prepared.inputs}
            inputs = tuple(Spread(name, own.minimum, own.maximum, own.rms) for name, own in ranges.items())
            found[node.output] = replace(errors.get(node.output, NO_ERROR), inputs=inputs)
        return found

    def _write(self, outputs: Iterable[str], target: Path) -> None:
        excluded = self._excluded(outputs)
        write_quantized(
            reopened(self._prepared), target, self._ranges, self._settings, excluded, Workspace(self._scratch)
        )

    def _excluded(self, outputs: Iterable[str]) -> dict[str, SkipReason]:
        return dict.fromkeys((*outputs, *self._kept), "found by search")


def isolated_errors(
    prepared: PreparedModel,
    nodes: Iterable[QuantizableNode],
    quantized: Path,
    samples: Collection[Mapping[str, Array]],
    settings: SessionRequest,
    time_is_up: Callable[[], bool],
) -> dict[str, Int8Error]:
    """Return first output of a node -> the error of quantizing it alone, as it is in the file `quantized`; empty for
    integer operators and for layers that were rewritten. A file is written beside `quantized`.
    """
    if not _keeps_layers(load_model(prepared.saved()).graph, load_model(quantized).graph):
        return {}
    copies = write_copies(prepared.saved(), nodes, quantized, quantized.with_name("copies.onnx"))
    return int8_errors(copies, samples, settings, time_is_up)


def _keeps_layers(prepared: ir.Graph, quantized: ir.Graph) -> bool:
    """Return whether a quantized model has the layers of the prepared one, with Q/DQ pairs between them."""
    known = {(node.name, node.op_type) for node in prepared}
    layers = (node for node in quantized if not is_op(node, *_ROUNDING))
    return all((node.name, node.op_type) in known for node in layers)


def settings_of(settings: QuantizeSettings) -> dict[str, bool | int | float | str]:
    """Return the settings that must be the same in a step that uses the search's result."""
    blocks: dict[str, bool | int | float | str] = {}
    if settings.mode == "weight_only":
        blocks = {"block_size": settings.block_size, "algorithm": settings.algorithm}
    return {
        "mode": settings.mode,
        "target": settings.target,
        "format": settings.format,
        "method": settings.method,
        "activations": settings.activation_type,
        "weights": settings.weights,
        "per_channel": settings.per_channel,
        "reduce_range": settings.reduces_range,
        "symmetric": settings.symmetric_activations,
        "min_intensity": settings.least_intensity,
        **blocks,
    }
