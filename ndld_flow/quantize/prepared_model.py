"""Preparation of a model for quantization: the form that ONNX Runtime's quantizer assumes.

Converters from TensorFlow pass the weights of a recurrent layer to its Loop as states. Only as constants can they be
quantized there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.opsets import convert_opset
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import OLDEST_OPSET, load_model, save_model, summarize_model
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import UniqueNames, nodes_named, nodes_of_types, op_name
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.precision.constraints.rules import first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.settings import (
    LAYER_OP_TYPES,
    QUANTIZED_OP_TYPES,
    WEIGHTED_OP_TYPES,
    QuantizeSettings,
    SkipReason,
)
from ndld_flow.quantize.weight_tensors import channel_pieces
from ndld_flow.records.model_diff import GraphSummary


def read_weights_directly(model: ir.Model) -> None:
    """Let all nodes read constants under their own names, in place."""
    for node in list(model.graph.all_nodes()):  # an outer Loop comes before those in its body
        if is_op(node, "Identity") and _is_constant(node.inputs[0]) and not node.outputs[0].is_graph_output():
            assert node.inputs[0] is not None and node.graph is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
            node.graph.remove(node, safe=True)
        elif is_op(node, "Loop"):
            _drop_constant_states(node, len(node.inputs) - 2, before_input=2, before_output=1)
        elif is_op(node, "Scan"):
            count = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
            _drop_constant_states(node, count, before_input=0, before_output=0)


def _is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a constant, directly or through a Transpose, which `quantize` computes."""
    producer = value.producer() if value is not None else None
    if value is not None and producer is not None and is_op(producer, "Transpose"):
        value = producer.inputs[0]
    return value is not None and value.const_value is not None


def _drop_constant_states(node: ir.Node, count: int, before_input: int, before_output: int) -> None:
    """Let the body of a Loop or Scan read the constants among its states, if it returns them as they are.

    `before_input` and `before_output` are the numbers of the body's inputs and outputs before the states.
    """
    if "body" not in node.attributes:
        return
    body = node.attributes["body"].as_graph()
    has_all = len(node.outputs) >= count and len(body.outputs) >= before_output + count
    if len(body.inputs) != len(node.inputs) or not has_all:  # Scan of opset 8 has the lengths of its sequences first
        return
    dropped = []
    for index in range(count):
        state, returned = body.inputs[before_input + index], body.outputs[before_output + index]
        is_read_outside = node.outputs[index].is_graph_output() or any(
            value is state for value in body.outputs if value is not returned
        )
        if _is_constant(node.inputs[before_input + index]) and _source(returned) is state and not is_read_outside:
            dropped.append(index)
    for index in reversed(dropped):
        weight = node.inputs[before_input + index]
        assert weight is not None
        body.outputs.pop(before_output + index)
        inner = body.inputs.pop(before_input + index)
        ir.convenience.replace_all_uses_with([inner, node.outputs[index]], [weight, weight])
    if dropped:
        _without(node, {before_input + index for index in dropped}, set(dropped))


def _source(value: ir.Value) -> ir.Value:
    """Return what Identity nodes copy to a value."""
    producer = value.producer()
    while producer is not None and is_op(producer, "Identity") and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def _without(node: ir.Node, inputs: set[int], outputs: set[int]) -> None:
    """Replace a node by one without some inputs and outputs, which nothing reads."""
    assert node.graph is not None
    kept = [value for index, value in enumerate(node.outputs) if index not in outputs]
    made = [ir.Value(type=value.type, shape=value.shape) for value in kept]
    body = node.attributes.pop("body")
    smaller = ir.Node(
        node.domain,
        node.op_type,
        [value for index, value in enumerate(node.inputs) if index not in inputs],
        [body, *node.attributes.values()],
        outputs=made,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    node.append(smaller)
    names = [value.name for value in kept]
    ir.convenience.replace_all_uses_with(kept, made, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    for value, name in zip(made, names, strict=True):
        value.name = name


def intensity(node: ir.Node) -> float:
    """Return multiply-accumulates per element of activations read and written, from the shape of the weight.

    0 without a constant weight, and for a convolution whose output is a single pixel, which is too little work to
    matter.
    """
    weight = layer_weight(node, 1)
    if weight is None or weight.const_value is None:
        return 0.0
    shape = weight.const_value.shape.numpy()
    if is_op(node, "Conv", "ConvTranspose"):  # at one pixel: of the output for Conv, of the input for ConvTranspose
        output = node.outputs[0].shape
        if output is not None and len(output) > 2 and all(dim == 1 for dim in tuple(output)[2:]):
            return 0.0
        strides = node.attributes.get("strides")
        area = math.prod(strides.as_ints()) if strides is not None else 1
        groups = node.attributes.get_int("group", 1)
        many, few = shape[0], shape[1] * groups * area
        return math.prod(shape) / (many + few)
    rows, columns = shape[-2:] if len(shape) > 1 else (shape[0], 1)
    return rows * columns / (rows + columns)


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_LAYERS = (*WEIGHTED_OP_TYPES, "GRU", "LSTM", "RNN")
"""Operators that count for `exclude.first` and `exclude.last`, if they have weights."""
_IR_WITHOUT_WEIGHT_INPUTS = 4
"""First IR version in which initializers need not be inputs."""


@dataclass(frozen=True)
class QuantizableNode:
    """A node that can be quantized with the given settings."""

    output: str
    """Name of its first output, which identifies it: names of nodes may be empty or repeated in the source."""
    name: str
    """Name in the prepared model; never empty, unique."""
    op_type: str
    reads: tuple[str, ...]
    """Its float inputs that are not weights."""
    makes: tuple[str, ...]
    """Its float outputs."""
    weights: tuple[str, ...]
    """Its float inputs that are weights."""
    follows: bool
    """True if it is quantized only when all its inputs are."""


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that is not quantized."""

    output: str
    """Name of its first output."""
    name: str
    """Name in the prepared model."""
    op_type: str
    reason: SkipReason


@dataclass(frozen=True)
class PreparedModel:
    """A model that is ready to be quantized."""

    model: ir.Model
    """The model in memory, with its weights on disk. Quantizing changes it: read the file for every further time."""
    path: Path
    """The file that `saved` writes."""
    inputs: tuple[str, ...]
    """Names of the model's inputs."""
    nodes: tuple[QuantizableNode, ...]
    """Nodes that can be quantized and are not excluded, in the order of execution."""
    skipped: tuple[SkippedLayer, ...]
    """All other layers."""
    layers: int
    """Number of nodes of the operators to quantize, including those below `min_intensity`, without those that
    follow."""
    before: GraphSummary
    """Summary of the source."""
    notes: tuple[str, ...]
    """Notes for the report."""

    def saved(self) -> Path:
        """Return the model's file, which is written when it is needed first: weights take time to copy."""
        if not self.path.exists():
            save_model(self.model, self.path)
        return self.path

    def chosen(self, exclude: Collection[str] = ()) -> list[QuantizableNode]:
        """Return the nodes that are quantized if those with these first outputs are excluded."""
        nodes: list[QuantizableNode] = []
        computed: set[str] = set()
        for node in self.nodes:
            if node.output not in exclude and (not node.follows or computed.issuperset(node.reads)):
                nodes.append(node)
                computed.update(node.makes)
        return nodes


def prepare_model(source: Path, target: Path, settings: QuantizeSettings) -> PreparedModel:
    """Return `source` with local functions inlined, every node named, weights as initializers, shapes inferred, and in
    an opset that has the Q/DQ operators; it is saved to `target` on demand.

    Raises `ModelError` for a model that cannot be read or converted, `RequestError` for unknown names and operators.
    """
    model = load_model(source)
    before = summarize_model(model)
    is_old = model.opset_imports.get("", OLDEST_OPSET) < OLDEST_OPSET
    notes = _convert_opset(model, source, settings.least_opset) if is_old else []
    notes += prepare(model, source)
    excluded = excluded_outputs(model, settings)
    typed = nodes_of_types(model, settings.wanted_op_types, "op_types")
    if settings.op_types:
        notes += [f"op_types: this model has no {op_type}" for op_type, nodes in typed.items() if not nodes]
    notes += _unfolded_notes(model)
    LiftConstantsToInitializersPass(lift_all_constants=False)(model)
    if (model.ir_version or 0) < _IR_WITHOUT_WEIGHT_INPUTS:  # IR version 3 had to list weights as inputs
        model.ir_version = _IR_WITHOUT_WEIGHT_INPUTS
        for value in [each for each in model.graph.inputs if each.name in model.graph.initializers]:
            model.graph.inputs.remove(value)
    notes += _convert_opset(model, source, settings.least_opset)
    UniqueNames(model).name_all(model)
    _name_constants(model)
    read_weights_directly(model)
    infer_shapes(model)
    chooser = _LayerChooser(model, settings, excluded)
    chooser.choose()
    inputs = tuple(value.name or "" for value in model.graph.inputs if value.name not in model.graph.initializers)
    return PreparedModel(
        model, target, inputs, tuple(chooser.nodes), tuple(chooser.skipped), chooser.layers, before, tuple(notes)
    )


def _name_constants(model: ir.Model) -> None:
    """Give constants of different bodies different names."""
    names, seen = UniqueNames(model), set[str | None]()
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.name in seen:
                value.name = names.value(value.name or "")
            seen.add(value.name)


def _convert_opset(model: ir.Model, source: Path, least: int) -> list[str]:
    """Convert a model to an opset, if its own is older; return a note on it."""
    opset = model.opset_imports.get("", 0)
    if opset >= least:
        return []
    convert_opset(EditedModel(model, source), least)
    return [f"opset {opset} -> {least}, for the quantized operators"]


def excluded_outputs(model: ir.Model, settings: QuantizeSettings) -> set[str]:
    """Return the first outputs of the nodes that the settings exclude."""
    named = nodes_named(model, settings.exclude.nodes, "exclude.nodes")
    typed = nodes_of_types(model, settings.exclude.op_types, "exclude.op_types")
    excluded = {first_output(node) for nodes in (*named.values(), *typed.values()) for node in nodes}
    layers = [first_output(node) for node in model.graph if is_op(node, *_LAYERS) and _has_weight(node)]
    ends = settings.exclude
    return excluded.union(layers[: ends.first], layers[max(len(layers) - ends.last, 0) :])


def _has_weight(node: ir.Node) -> bool:
    """Return whether a layer reads a constant, which may still be a node, directly or transposed."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    maker = value.producer() if value is not None else None
    if maker is not None and is_op(maker, "Transpose"):
        value = maker.inputs[0]
    return value is not None and (value.const_value is not None or is_op(value.producer(), "Constant"))


def _unfolded_notes(model: ir.Model) -> list[str]:
    """Return a note on BatchNormalizations that `sanitize` would fold."""
    count = sum(
        is_op(node, "BatchNormalization") and is_op(node.inputs[0].producer() if node.inputs[0] else None, "Conv")
        for node in model.graph
    )
    if not count:
        return []
    return [f"{count} BatchNormalization nodes follow a Conv unfolded: run `sanitize` first for a faster model"]


class _LayerChooser:
    """Decides for each node whether it can be quantized, and why not."""

    def __init__(self, model: ir.Model, settings: QuantizeSettings, excluded: Collection[str]) -> None:
        self._model, self._settings, self._excluded = model, settings, excluded
        self.nodes: list[QuantizableNode] = []
        self.skipped: list[SkippedLayer] = []
        self.layers = 0
        self._finite: dict[ir.TensorProtocol, bool] = {}

    def choose(self) -> None:
        for node in self._model.graph.all_nodes():
            if is_op(node, *self._settings.following_op_types):
                described = _described(node, follows=True)
                if node.graph is self._model.graph and described is not None and described.output not in self._excluded:
                    self.nodes.append(described)
                continue
            if not self._is_layer(node):
                continue
            self.layers += is_op(node, *self._settings.wanted_op_types)
            reason = self._reason_to_skip(node)
            described = None if reason else _described(node, follows=False)
            if described is not None:
                self.nodes.append(described)
            else:
                missing = reason or "element type"
                self.skipped.append(SkippedLayer(first_output(node), node.name or "", op_name(node), missing))

    def _is_layer(self, node: ir.Node) -> bool:
        if is_op(node, "Gather"):
            table = layer_weight(node, 0)  # most others pick a size from a shape
            is_embedding = table is not None and table.dtype is not None and table.dtype.is_floating_point()
            return is_embedding and "Gather" in self._settings.wanted_op_types
        return op_name(node) in (*LAYER_OP_TYPES, *QUANTIZED_OP_TYPES) or is_op(node, *self._settings.wanted_op_types)

    def _reason_to_skip(self, node: ir.Node) -> SkipReason | None:
        if first_output(node) in self._excluded:
            return "excluded"
        if op_name(node) in QUANTIZED_OP_TYPES or any(
            value is not None and is_op(value.producer(), "DequantizeLinear") for value in node.inputs
        ):
            return "already quantized"
        if not is_op(node, *self._settings.wanted_op_types):
            return "operator"
        if self._settings.mode == "static" and node.graph is not self._model.graph:
            return "body"  # no run of the model shows the ranges of its values
        reason = self._reason_of_weight(node) or _reason_of_types(node)
        if reason is None and node.op_type in WEIGHTED_OP_TYPES and intensity(node) < self._settings.least_intensity:
            return "low intensity"
        return reason

    def _reason_of_weight(self, node: ir.Node) -> SkipReason | None:
        """Return why the weight of a layer cannot be quantized."""
        settings = self._settings
        weights = [value for value in (layer_weight(node, i) for i in _weight_indices(node)) if value is not None]
        if len(weights) < len(_weight_indices(node)):
            # Without a limit on the intensity, products of two activations are quantized too.
            either = settings.mode == "static" and node.op_type in WEIGHTED_OP_TYPES and settings.least_intensity <= 0
            return None if either else "no constant weight"
        if any(value.is_graph_input() for value in weights):
            return "replaceable weight"
        if settings.mode == "weight_only" and is_op(node, "Gather") and node.attributes.get_int("axis", 0) != 0:
            return "attributes"
        if is_op(node, "LSTM") and node.attributes.get_int("layout", 0) != 0:
            return "attributes"
        tensors = [value.const_value for value in weights if value.const_value is not None]
        if any(_supports_no_shape(node, tensor, settings) for tensor in tensors):
            return "weight shape"
        if settings.mode == "weight_only" and _rank_is_lost(node, tensors[0]):
            return "input shape"
        if tensors and not _is_smaller(node, tensors, settings):
            return "no gain"
        # Only static quantization rounds the other constants of a layer, such as its bias.
        constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        read = {*tensors, *constants} if settings.mode == "static" else tensors
        return None if all(map(self._is_finite, read)) else "weight not finite"

    def _is_finite(self, tensor: ir.TensorProtocol) -> bool:
        """Return whether all values of a constant are numbers; each constant is read once."""
        if tensor not in self._finite:
            pieces = channel_pieces(tensor, None) if tensor.dtype in _FLOATS else iter(())
            self._finite[tensor] = all(np.isfinite(values).all() for _, values in pieces)
        return self._finite[tensor]


def _weight_indices(node: ir.Node) -> tuple[int, ...]:
    """Return the inputs of a layer that must be constant."""
    if is_op(node, "LSTM"):
        return (1, 2)
    if is_op(node, "Gather"):
        return (0,)
    return (1,) if node.op_type in WEIGHTED_OP_TYPES else ()


def layer_weight(node: ir.Node, index: int) -> ir.Value | None:
    """Return the constant that an input of a layer reads, directly or transposed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is not None and is_transposed_weight(value):
        producer = value.producer()
        value = producer.inputs[0] if producer is not None else None
    return value if value is not None and value.const_value is not None else None


def gemm_columns(gemm: ir.Node, weight: ir.Value) -> int:
    """Return the number of columns of a Gemm's result."""
    assert weight.const_value is not None and gemm.inputs[1] is not None
    flips = (gemm.attributes.get_int("transB", 0) != 0) ^ is_transposed_weight(gemm.inputs[1])
    return weight.const_value.shape.numpy()[0 if flips else 1]


def is_transposed_weight(value: ir.Value) -> bool:
    """Return whether a value is a constant matrix with rows and columns exchanged by a Transpose."""
    producer = value.producer()
    source = producer.inputs[0] if is_op(producer, "Transpose") and producer is not None else None
    if producer is None or source is None or source.const_value is None or len(source.const_value.shape) != 2:
        return False
    order = producer.attributes.get("perm")
    return order is None or list(order.as_ints()) == [1, 0]


def _supports_no_shape(node: ir.Node, tensor: ir.TensorProtocol, settings: QuantizeSettings) -> bool:
    shape = tensor.shape.numpy()
    if not tensor.size:
        return True
    if settings.mode == "weight_only" and is_op(node, "Gather"):
        is_turned = node.inputs[0] is not None and is_transposed_weight(node.inputs[0])
        return is_turned or len(shape) != 2 or shape[1] % settings.block_size != 0  # a table has no place for padding
    if settings.mode == "weight_only":
        return len(shape) < 2 or any(size != 1 for size in shape[:-2])
    if is_op(node, "Gemm"):
        return settings.mode == "static" and _has_bias_of_rows(node)
    if not is_op(node, "MatMul"):
        return False
    # Its kernels read the scales of a matrix only.
    return len(shape) < 2 or (len(shape) > 2 and (settings.per_channel or settings.mode == "dynamic"))


def _has_bias_of_rows(gemm: ir.Node) -> bool:
    """Return whether the constant that a Gemm adds differs from row to row, and so is no bias."""
    bias = layer_weight(gemm, 2)
    if bias is None or bias.const_value is None or gemm.inputs[2] is None:
        return False
    shape = bias.const_value.shape.numpy()
    rows = shape[-1 if is_transposed_weight(gemm.inputs[2]) else -2] if len(shape) == 2 else 1
    return rows != 1


def _rank_is_lost(node: ir.Node, weight: ir.TensorProtocol) -> bool:
    """Return whether the output has more dimensions than the input, for which MatMulNBits has no attribute."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return len(weight.shape) > 2 and (shape is None or len(shape) < len(weight.shape))


def _is_smaller(node: ir.Node, tensors: Sequence[ir.TensorProtocol], settings: QuantizeSettings) -> bool:
    """Return whether the weights of a layer take fewer bytes when they are quantized."""
    before = sum(tensor.stored_bytes if isinstance(tensor, SparseInitializer) else tensor.nbytes for tensor in tensors)
    if settings.mode == "weight_only":
        return _block_bytes(node, tensors[0], settings) < before
    return sum(tensor.size * settings.weight_bits / 8 for tensor in tensors) < before


def _block_bytes(node: ir.Node, weight: ir.TensorProtocol, settings: QuantizeSettings) -> int:
    """Return the bytes of a weight in blocks, scales and offsets included."""
    flips = is_op(node, "Gemm") and node.attributes.get_int("transB", 0) != 0
    flips ^= node.inputs[1] is not None and is_transposed_weight(node.inputs[1])
    flips |= is_op(node, "Gather")  # blocks of a table lie along its rows
    rows = weight.shape.numpy()[-1 if flips else -2]
    bits = settings.weight_bits
    blocks = -(-rows // settings.block_size) * (weight.size // rows)
    offset = 0 if settings.symmetric else weight.dtype.bitwidth if settings.algorithm == "hqq" else bits
    return blocks * (settings.block_size * bits + weight.dtype.bitwidth + offset) // 8


def _reason_of_types(node: ir.Node) -> SkipReason | None:
    """Return the reason if a layer has types that cannot be quantized; unknown types are those of its weight."""
    constants = [value.dtype for value in node.inputs if value is not None and value.const_value is not None]
    floats = [dtype for dtype in constants if dtype is not None and dtype.is_floating_point()]
    for value in (*node.inputs[:1], *node.outputs):
        if value is not None and value.name and value.dtype is None and len(set(floats)) == 1:
            value.type = ir.TensorType(floats[0])
    values = [value for value in (*node.inputs[:2], *node.outputs[:1]) if value is not None and value.name]
    if any(value.dtype is None for value in values):
        return "unknown type"
    own = [value for value in values if not (is_op(node, "Gather") and value is node.inputs[1])]
    return None if all(value.dtype in _FLOATS for value in own) else "element type"


def _described(node: ir.Node, follows: bool) -> QuantizableNode | None:
    """Return the node; None if it has no float tensors, or if it follows others and reads a weight."""
    reads = [(index, value) for index, value in enumerate(node.inputs) if value is not None and value.dtype in _FLOATS]
    constants = {index: layer_weight(node, index) for index, _ in reads}
    makes = tuple(value.name or "" for value in node.outputs if value.name and value.dtype in _FLOATS)
    weights = tuple(value.name or "" for value in constants.values() if value is not None)
    tensors = tuple(value.name or "" for index, value in reads if constants[index] is None)
    if not makes or not (tensors or is_op(node, "Gather")):
        return None
    if follows and weights and node.op_type in ("Add", "Concat"):
        return None
    return QuantizableNode(first_output(node), node.name or "", node.op_type, tensors, makes, weights, follows)
