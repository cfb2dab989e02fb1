"""A quantised model, written from a prepared one and its ranges: quick, so that a search may write many."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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
from ndld_flow.models.files import save_model
from ndld_flow.models.op_signatures import is_op
from ndld_flow.quantize.calibration import Ranges
from ndld_flow.quantize.hearing import heard
from ndld_flow.quantize.prepared_model import PreparedModel, QuantizableNode
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.quantize.vnni import reduces_range

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
    """What was written."""

    nodes: tuple[QuantizableNode, ...]
    """Those that were quantised."""
    notes: tuple[str, ...]
    """Sentences for people: what ONNX Runtime's quantizer had to say."""


def write_quantized(
    prepared: PreparedModel, target: Path, ranges: Ranges, settings: QuantizeSettings, exclude: Collection[str] = ()
) -> QuantizedModel:
    """Write the prepared model to `target`, quantised but for the nodes whose first outputs are in `exclude`.

    The same settings give the same bytes. Weights are read into memory. Raises `RequestError` when the quantizer
    cannot do it.
    """
    spoilt = ranges.spoilt(prepared)
    nodes = prepared.chosen(spoilt.union(exclude))
    proto = onnx.load(prepared.path)
    lines: list[str] = []
    if nodes:
        add_infer_metadata(proto)
        try:
            with heard() as lines:
                proto = _quantized(proto, nodes, ranges, settings)
        except (ValueError, TypeError, RuntimeError, KeyError, AttributeError, AssertionError) as error:
            raise RequestError(
                f"ONNX Runtime's quantizer cannot quantise this model: {' '.join(str(error).split())}. Leave the nodes "
                "it names as they are (`exclude`), or choose fewer `op_types`."
            ) from None
    model = ir.serde.deserialize_model(proto)
    model.metadata_props.pop("onnx.infer", None)
    _spare_others(model, {node.name for node in nodes})
    model.graph.sort()  # the quantizer appends what it makes
    save_model(model, target)
    infinite = [f"{len(spoilt)} nodes stay as they are: NaN or infinity on the samples"] if spoilt else []
    return QuantizedModel(tuple(nodes), (*infinite, *_together(lines)))


def _spare_others(model: ir.Model, quantized: Collection[str]) -> None:
    """Let nodes that are not quantised read what they read before: the quantizer rounds it for all readers.

    Only what quantised nodes make stays rounded for all, as then it never exists otherwise.
    """
    for node in model.graph:
        rounded = node.inputs[0].producer() if is_op(node, "DequantizeLinear") and node.inputs[0] else None
        whole = rounded.inputs[0] if rounded is not None and is_op(rounded, "QuantizeLinear") else None
        maker = whole.producer() if whole is not None else None
        if whole is None or (maker is not None and maker.name in quantized) or node.outputs[0].is_graph_output():
            continue
        for user, index in tuple(node.outputs[0].uses()):
            if user.name not in quantized:
                user.replace_input_with(index, whole)


def _together(lines: Sequence[str]) -> list[str]:
    """Lines that differ in names only are told once."""
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        alike.setdefault(_QUOTED.sub("", line), []).append(line)
    return [some[0] if len(some) == 1 else f"{some[0]} (and {len(some) - 1} more like it)" for some in alike.values()]


def _quantized(
    proto: onnx.ModelProto, nodes: Sequence[QuantizableNode], ranges: Ranges, settings: QuantizeSettings
) -> onnx.ModelProto:
    names, op_types = [node.name for node in nodes], sorted({node.op_type for node in nodes})
    shared = (settings.per_channel, reduces_range(settings))
    weights = _TYPES[settings.weights]
    if settings.mode == "dynamic":
        # A Gemm is made a MatMul and an Add before it is looked at.
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
        spans = {name: _tensor_data(one.low, one.high) for name, one in ranges.tensors.items()}
        activations = _TYPES[settings.activation_type]
        quantizer = QDQQuantizer(
            proto, *shared, weights, activations, spans, names, [], op_types, _options(settings, op_types)
        )
    quantizer.quantize_model()
    made: onnx.ModelProto = quantizer.model.model
    return made


def _tensor_data(low: float, high: float) -> TensorData:
    return TensorData(lowest=np.float32(low), highest=np.float32(high))


def _options(settings: QuantizeSettings, op_types: Sequence[str]) -> Mapping[str, object]:
    """What ONNX Runtime calls extra options."""
    common = {"ActivationSymmetric": settings.symmetric_activations}
    if settings.target == "cpu":
        return common
    # TensorRT fuses what follows a layer into it and keeps biases in fp32.
    return common | {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": list(op_types)}
