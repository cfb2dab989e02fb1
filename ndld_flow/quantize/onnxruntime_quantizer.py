"""ONNX Runtime's quantizers of whole models, which get the graph without its weights.

They hold the model as one protobuf message. Weights of layers are replaced by stand-ins with the same extremes, all
other large constants by their type and shape; afterwards the weights are put back, quantized while they are saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode, add_infer_metadata, get_qmin_qmax_for_qType

from ndld_flow.base.errors import RequestError
from ndld_flow.models.element_types import is_op
from ndld_flow.models.external_data import tensors_of
from ndld_flow.models.shape_inference import light_proto
from ndld_flow.quantize.calibration import Ranges, captured_output
from ndld_flow.quantize.isolated_layers import IsolatedLayers
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.quantize.weight_tensors import QuantizedTensor, stand_in

_TYPES = {
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint16": QuantType.QUInt16,
    "int16": QuantType.QInt16,
    "int4": QuantType.QInt4,
}
_SMALL_BYTES = 1024


class QuantizerError(RequestError):
    """ONNX Runtime's quantizer cannot quantize a selection of layers."""


def quantize_by_onnxruntime(layers: IsolatedLayers, ranges: Ranges) -> tuple[ir.Model, list[str]]:
    """Return the quantized model and the quantizer's warnings.

    Raises `QuantizerError` if the quantizer fails.
    """
    integers = layers.settings.mode == "dynamic" or layers.settings.format == "qoperator"
    read_in_bodies = _read_in_bodies(layers) if integers else []
    layers.model.graph.outputs.extend(read_in_bodies)  # otherwise the quantizer does not compute them
    proto = light_proto(layers.model, partial(_light, layers))
    add_infer_metadata(proto)
    try:
        with captured_output() as lines:
            quantized = _quantized(proto, layers, layers.nodes, ranges)
    except _FAILURES as error:
        node = _failing_node(proto, layers, ranges)
        raise QuantizerError(
            f"ONNX Runtime's quantizer cannot quantize the {node.op_type} {node.name!r}: "
            f"{' '.join(str(error).split())}. `exclude` leaves it out, by its name or its operator."
        ) from None
    model = ir.serde.deserialize_model(quantized)
    model.metadata_props.pop("onnx.infer", None)
    for _ in read_in_bodies:
        model.graph.outputs.pop()
    _restore_constants(model, layers)
    layers.of_bodies.put_back(model)
    _reconnect_unquantized(model, {node.name for node in layers.nodes})
    _reconnect_bodies(model, {node.name for node in layers.nodes})
    return model, lines


_FAILURES = (ValueError, TypeError, RuntimeError, KeyError, AttributeError, AssertionError, IndexError)


def _quantized(
    proto: onnx.ModelProto, layers: IsolatedLayers, nodes: Sequence[ir.Node], ranges: Ranges
) -> onnx.ModelProto:
    """Return a copy of the model with these of its layers quantized."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    quantizer = _quantizer(copy, layers, nodes, ranges)
    quantizer.quantize_model()
    result: onnx.ModelProto = quantizer.model.model
    return result


def _failing_node(proto: onnx.ModelProto, layers: IsolatedLayers, ranges: Ranges) -> ir.Node:
    """Return a node without which fewer layers would fail, by halving: the quantizer's errors name none."""
    suspects: Sequence[ir.Node] = layers.nodes
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        try:
            with captured_output():
                _quantized(proto, layers, half, ranges)
        except _FAILURES:
            suspects = half
        else:
            suspects = suspects[len(half) :]
    return suspects[0]


def _light(layers: IsolatedLayers, value: ir.Value, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a stand-in for the weight of a layer, and an empty external tensor for a large constant of other nodes."""
    role, name = layers.roles.get(value), value.name or ""
    if role is not None and role.by_extremes:
        return stand_in(tensor, role.axis, name)
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    if role is not None or tensor.nbytes <= _SMALL_BYTES:
        return ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=name)
    return ir.ExternalTensor("", None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


class _Absorbs:
    """The part of ONNX Runtime's quantizers that lets the rounding of a tensor absorb the Relu or Clip that reads it.

    They look for other readers in the main graph only, and a range that is rounded to always includes 0.
    """

    read_elsewhere: Collection[str | None]
    """Tensors that bodies read, and outputs of the model."""
    tensors_range: dict[str, TensorData]

    def adjust_tensor_ranges(self) -> None:
        """Give a tensor the range of the only Relu or Clip that reads it, unless its other values are read too."""
        kept = {name: self.tensors_range[name] for name in self.read_elsewhere if name in self.tensors_range}
        super().adjust_tensor_ranges()  # type: ignore[misc]
        self.tensors_range.update(kept)

    def may_absorb(self, value: str, clipped: str) -> bool:
        """Return whether nothing but a Relu or Clip reads a value, as far as bodies and outputs go, and rounding to the
        range of what it makes of it does the same.
        """
        low, high = self.tensors_range[clipped].range_value if clipped in self.tensors_range else (0.0, 0.0)
        return value not in self.read_elsewhere and bool(low <= 0.0 <= high)


class _Quantizer(_Absorbs, QDQQuantizer):  # type: ignore[misc]
    """The quantizer that writes Q/DQ pairs."""

    def __init__(self, layers: IsolatedLayers, *arguments: object) -> None:
        self.read_elsewhere = _read_elsewhere(layers)
        self._in_floats = {node.name for node in layers.nodes if is_op(node, "ConvTranspose")}
        super().__init__(*arguments)

    def try_replacing_upstream_output(self, upstream: str, output: str) -> bool:
        return self.may_absorb(upstream, output) and super().try_replacing_upstream_output(upstream, output)

    def quantize_bias_tensor(self, node_name: str, *arguments: object) -> None:
        """Quantize a bias, except that of a ConvTranspose: a CPU computes it in floats, and with groups it has more
        channels than there are scales."""
        if node_name not in self._in_floats:
            super().quantize_bias_tensor(node_name, *arguments)


class _OperatorQuantizer(_Absorbs, ONNXQuantizer):  # type: ignore[misc]
    """The quantizer that writes integer operators."""

    def __init__(self, layers: IsolatedLayers, *arguments: object) -> None:
        self.read_elsewhere = _read_elsewhere(layers)
        super().__init__(*arguments)

    def should_quantize_node(self, node: onnx.NodeProto) -> bool:
        """Return whether to quantize a node: a Relu or Clip only if the rounding of its input may absorb it."""
        wanted: bool = super().should_quantize_node(node)
        if not wanted or node.op_type not in ("Relu", "Clip"):
            return wanted
        is_alone = len(self.model.input_name_to_nodes()[node.input[0]]) == 1
        return is_alone and self.may_absorb(node.input[0], node.output[0])

    def _dequantize_outputs(self) -> None:
        """Dequantize what a Where reads, too: the base class keeps a Where whose input exists in integers only."""
        for where in [node for node in self.new_nodes if node.op_type == "Where"]:
            read = [node for name in where.input if (node := self._dequantize_value(name)) is not None]
            index = self.new_nodes.index(where)
            self.new_nodes[index:index] = read
        super()._dequantize_outputs()


def _read_elsewhere(layers: IsolatedLayers) -> set[str | None]:
    return {value.name for value in (*_read_in_bodies(layers), *layers.model.graph.outputs)}


def _read_in_bodies(layers: IsolatedLayers) -> list[ir.Value]:
    """Return the outputs of layers that bodies read, and that are no outputs of the model."""
    main = layers.model.graph
    computed = (value for node in layers.nodes for value in node.outputs if not value.is_graph_output())
    return [value for value in computed if any(user.graph is not main for user, _ in value.uses())]


def _quantizer(
    proto: onnx.ModelProto, layers: IsolatedLayers, nodes: Sequence[ir.Node], ranges: Ranges
) -> ONNXQuantizer | QDQQuantizer:
    settings = layers.settings
    names, op_types = [node.name for node in nodes], sorted({node.op_type for node in nodes})
    shared = (settings.per_channel, settings.reduces_range)
    weights = _TYPES[settings.weights]
    if settings.mode == "dynamic":
        kind, mode, const = QuantType.QUInt8, QuantizationMode.IntegerOps, {"MatMulConstBOnly": True}
        # Where it is not static, it splits all Gemm nodes and infers shapes, from stand-ins here, before it begins.
        quantizer = ONNXQuantizer(proto, *shared, mode, True, weights, kind, None, names, [], op_types, const)
        quantizer.static = False
        return quantizer
    spans = {
        name: TensorData(lowest=np.float32(span.low), highest=np.float32(span.high))
        for name, span in ranges.tensors.items()
    }
    spans |= {new: spans[old] for new, old in layers.renamed.items() if old in spans}
    activations, options = _TYPES[settings.activation_type], _options(settings, op_types)
    if settings.format == "qoperator":
        how = (*shared, QuantizationMode.QLinearOps, True, weights, activations, spans)
        return _OperatorQuantizer(layers, proto, *how, names, [], op_types, options)
    options = {**options, "TensorQuantOverrides": dict(_channel_scales(proto, layers, weights))}
    return _Quantizer(layers, proto, *shared, weights, activations, spans, names, [], op_types, options)


def _channel_scales(
    proto: onnx.ModelProto, layers: IsolatedLayers, weights: QuantType
) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Yield each weight that has a scale for every channel, with these scales.

    They are those of ONNX Runtime's `compute_scale_zp` for symmetric ranges, which takes 0.1 ms for each channel:
    seconds for all of a model.
    """
    low, high = get_qmin_qmax_for_qType(weights.tensor_type, layers.settings.reduces_range, symmetric=True)
    axes = {value.name: role.axis for value, role in layers.roles.items() if role.by_extremes}
    for weight in proto.graph.initializer:
        axis = axes.get(weight.name)
        if axis is None or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        extremes = np.moveaxis(numpy_helper.to_array(weight), axis, 0).reshape(weight.dims[axis], -1)
        scales = 2 * np.abs(extremes).max(axis=1).astype(np.float64) / (np.float64(high) - np.float64(low))
        zero = np.round((np.float64(low) + np.float64(high)) / 2)
        tiny = scales < np.finfo(np.float32).tiny
        found = zip(np.where(tiny, 1.0, scales).astype(np.float32), np.where(tiny, 0.0, zero), strict=True)
        yield weight.name, [{"axis": axis, "scale": scale, "zero_point": point} for scale, point in found]


def _options(settings: QuantizeSettings, op_types: Sequence[str]) -> Mapping[str, object]:
    """Return ONNX Runtime's `extra_options`."""
    common = {"ActivationSymmetric": settings.symmetric_activations}
    if settings.target == "cpu":
        return common
    # TensorRT and OpenVINO fuse the nodes after a layer into it and keep biases in fp32.
    return common | {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": list(op_types)}


def _restore_constants(model: ir.Model, layers: IsolatedLayers) -> None:
    """Put the constants back: quantized where the quantizer did so with their stand-ins."""
    originals = [graph.initializers for graph in layers.model.graphs()]
    held = {name: value.const_value for values in originals for name, value in values.items()}
    by_extremes = {value.name or "": role for value, role in layers.roles.items() if role.by_extremes}
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = held.get(name)
            weight = name.removesuffix("_quantized")
            if tensor is not None:
                value.const_value, value.shape = tensor, ir.Shape(tensor.shape.numpy())
            elif weight in by_extremes and weight != name:
                _restore_integers(model, value, held[weight], by_extremes[weight].axis)
    folders = {str(each.location): each.base_dir for each in _external(layers.model)}
    for each in _external(model):
        each.base_dir = each.base_dir or folders.get(str(each.location), "")


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    return (tensor for tensor in tensors_of(model) if isinstance(tensor, ir.ExternalTensor))


def _restore_integers(model: ir.Model, value: ir.Value, tensor: ir.TensorProtocol | None, axis: int | None) -> None:
    """Replace the integers of a stand-in by those of its weight."""
    assert tensor is not None and value.const_value is not None
    weight = (value.name or "").removesuffix("_quantized")
    constants = model.graph.initializers
    scale, zero_point = constants[f"{weight}_scale"].const_value, constants[f"{weight}_zero_point"].const_value
    assert scale is not None and zero_point is not None
    axes = {user.attributes.get_int("axis", 1) for user, _ in value.uses() if is_op(user, "DequantizeLinear")}
    if scale.size != (1 if axis is None else tensor.shape.numpy()[axis]) or (scale.size > 1 and axes - {axis}):
        raise RuntimeError(f"ONNX Runtime's quantizer read weight {weight!r} along another axis than {axis}")
    quantized = QuantizedTensor(tensor, value.const_value.dtype, scale.numpy(), zero_point.numpy(), axis)
    quantized.name = value.name
    value.const_value, value.shape = quantized, ir.Shape(tensor.shape.numpy())


def _reconnect_unquantized(model: ir.Model, quantized: Collection[str | None]) -> None:
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


def _reconnect_bodies(model: ir.Model, quantized: Collection[str | None]) -> None:
    """Let bodies of If and Loop read the rounded outputs of quantized nodes, as other consumers do.

    The quantizer leaves bodies as they are, and where it absorbs a Relu or Clip into the rounding, it gives the name of
    the removed node's output to its input.
    """
    for node in list(model.graph):
        value = node.inputs[0] if is_op(node, "QuantizeLinear") else None
        maker = value.producer() if value is not None else None
        if value is None or maker is None or maker.name not in quantized:
            continue
        rounded = next((user.outputs[0] for user, _ in node.outputs[0].uses() if is_op(user, "DequantizeLinear")), None)
        for user, index in tuple(value.uses()):
            if user.graph is not model.graph and rounded is not None:
                user.replace_input_with(index, rounded)
    model.graph.sort()
