"""The layer pass: the layers that OpenVINO ran, with the nodes of the model from which it made them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ndld_flow.models.files import load_model
from ndld_flow.models.node_weights import evidence_of, with_producers
from ndld_flow.models.nodes import node_label, precision_of
from ndld_flow.precision.constraints.constraints import join_precisions
from ndld_flow.profiles.read.layer_work import count_macs, tensor_bytes
from ndld_flow.records.layer_arithmetic import CONVERTS
from ndld_flow.records.profile import Layer, LayerRole, TensorInfo
from ndld_flow.runtimes.protocol import LayerPass

_ROLES: dict[str, LayerRole] = {
    "Reorder": "reformat",
    "Transpose": "reformat",
    "Reshape": "reformat",
    "Convert": "cast",
    "FakeQuantize": "quantize",
    "If": "control",
    "Loop": "control",
    "TensorIterator": "control",
}
"""Types of OpenVINO's layers that do not compute."""
_MOVES = tuple(type_ for type_, role in _ROLES.items() if role in ("reformat", "cast"))
_MULTIPLY = ("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
_ENDS = ("Input", "Output")
_PARTS = "Subgraph"
"""The type of a layer that is a compiled part of the graph."""
_NUMBER = re.compile(r"#\d+")


def read_layers(model: Path, recordings: Sequence[Path]) -> LayerPass:
    """Read the recordings of `record_layers`, one for each process run, and delete them.

    Raises `ModelError` if the model cannot be read as ONNX.
    """
    runs = [json.loads(recording.read_text(encoding="utf-8")) for recording in recordings]
    origins = _Origins(load_model(model), runs[0])
    # Also those without a time: OpenVINO marks a layer of less than a microsecond as not executed.
    ran = [node for node in runs[0]["nodes"] if node["name"] not in origins.constants and node["type"] not in _ENDS]
    nodes = origins.find(ran)
    seen: Counter[str] = Counter()
    names = []
    for name in (_name(node, nodes[node["name"]], origins) for node in ran):
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    layers = tuple(
        _describe(index, node, name, nodes[node["name"]], origins)
        for index, (node, name) in enumerate(zip(ran, names, strict=True))
    )
    layers = tuple(
        layer.model_copy(update={"samples_ms": tuple(run["times"].get(node["name"], 0.0) for run in runs)})
        for layer, node in zip(layers, ran, strict=True)
    )
    for recording in recordings:
        recording.unlink()
    return LayerPass(
        layers=layers,
        pass_ms=tuple(run["pass_ms"] for run in runs),
        notes=tuple(_notes(layers, nodes, origins)),
        layer_runs=(1,) * len(runs),
    )


def _notes(layers: Sequence[Layer], nodes: Mapping[str, Sequence[ir.Node]], origins: _Origins) -> Iterable[str]:
    traced = [found for found in nodes.values() if found]
    covered = len({node for found in traced for node in found})
    yield (
        f"{len(traced)} of {len(layers)} layers come from {covered} of the model's {len(origins.nodes)} nodes "
        f"(constants not counted); {len(layers) - len(traced)} layers were inserted by OpenVINO, or it does not record "
        "their origin"
    )
    yield (
        "each time of a layer is the mean of the passes of one process run, of which OpenVINO reports whole "
        "microseconds: a layer of less than a microsecond has the time 0"
    )


class _Origins:
    """The nodes of the model from which OpenVINO made its layers."""

    def __init__(self, model: ir.Model, recorded: Mapping[str, Any]) -> None:
        self.nodes = [node for node in model.graph if node.op_type != "Constant"]
        self._position = {node: position for position, node in enumerate(self.nodes)}
        self._producers = {value.name: node for node in self.nodes for value in node.outputs}
        self._tensors: Mapping[str, Sequence[str]] = recorded["origins"]
        self.layers = {node["name"]: node for node in recorded["nodes"]}
        self.constants: set[str] = set()
        for name, layer in self.layers.items():  # in order of execution
            reads = [source for source, _ in layer["reads"]]
            if layer["type"] == "Const" or (reads and all(source in self.constants for source in reads)):
                self.constants.add(name)

    def find(self, ran: Sequence[Mapping[str, Any]]) -> dict[str, tuple[ir.Node, ...]]:
        """Return layer -> its nodes in the model's order; none for a layer that OpenVINO inserted."""
        named = {
            layer["name"]: {self._producers[name] for name in self._tensors_of(layer) if name in self._producers}
            for layer in ran
        }
        everything = {node for nodes in named.values() for node in nodes}
        # OpenVINO forgets nodes that it folds or removes: no layer names them.
        complete = {
            name: with_producers(nodes, lambda _, node: node in self._position and node not in everything)
            for name, nodes in named.items()
        }
        return {name: tuple(sorted(nodes, key=self._position.__getitem__)) for name, nodes in complete.items()}

    def tensor_of(self, layer: Mapping[str, Any]) -> str:
        """Return the tensor of the model that a layer computes, the last of those that it fuses; empty if unknown."""
        return next(reversed(self._tensors_of(layer)), "")

    def _tensors_of(self, layer: Mapping[str, Any]) -> list[str]:
        numbers = [match[0] for name in layer["origins"] if (match := _NUMBER.match(name))]
        return [name for number in numbers for name in self._tensors.get(number, ())]


def _name(layer: Mapping[str, Any], nodes: Sequence[ir.Node], origins: _Origins) -> str:
    """Return the names of the nodes, as TensorRT joins them; for an inserted layer, that of the tensor it changes."""
    if nodes:
        return " + ".join(map(node_label, nodes))
    read = next((origins.layers[name] for name, _ in layer["reads"] if name in origins.layers), None)
    # OpenVINO's own names contain counters, which differ from process to process.
    tensor = "" if read is None else origins.tensor_of(read) or (read["name"] if read["type"] == "Input" else "")
    return f"{layer['type']} of {tensor}" if tensor else str(layer["type"])


def _describe(index: int, layer: Mapping[str, Any], name: str, nodes: Sequence[ir.Node], origins: _Origins) -> Layer:
    read = [(source, port) for source, port in layer["reads"] if source in origins.layers]
    inputs, constants = (
        [
            info
            for source, port in read
            if (source in origins.constants) == constant
            if (info := _tensor(origins.layers[source], port, origins)) is not None
        ]
        for constant in (False, True)
    )
    outputs = [info for port in range(len(layer["writes"])) if (info := _tensor(layer, port, origins)) is not None]
    evidence = evidence_of(nodes)
    role = _ROLES.get(layer["type"], "compute")
    if role == "reformat" and nodes:
        role = "compute"  # the model asks for it, as in the layers of other runtimes
    precision, basis = _precision(role, layer, inputs, outputs)
    return Layer(
        index=index,
        name=name,
        type=layer["type"],
        provider="CPU",
        precision=precision,
        precision_basis=basis,
        asked_precision=join_precisions(map(precision_of, nodes)),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        onnx_nodes=tuple(map(node_label, nodes)),
        samples_ms=(),
        role=role,
        tactic=layer["kernel"],
        groups=next((node.attributes.get_int("group", 1) for node in nodes if "Conv" in node.op_type), None),
        macs=_macs(nodes, outputs, inputs),
        read_bytes=tensor_bytes([*inputs, *constants]) if inputs else 0,
        written_bytes=tensor_bytes(outputs),
        weight_bytes=tensor_bytes(constants),
        weights=evidence.weights,
        attributes=evidence.attributes,
        activation=_activation(nodes),
    )


_ACTIVATIONS = (
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Clip",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Tanh",
    "Gelu",
    "Mish",
)


def _activation(nodes: Sequence[ir.Node]) -> str:
    """Return the activation of a layer that also multiplies: the only one among its nodes, `relu`.

    Empty where a Clip or Sigmoid and a product may be parts of another one: x * clip(x + 3, 0, 6) / 6 is HardSwish.
    """
    kinds = {node.op_type for node in nodes}
    found = kinds & set(_ACTIVATIONS)
    may_be_parts = bool(kinds & {"Mul", "Div"}) and bool(found & {"Clip", "Sigmoid", "HardSigmoid", "Tanh"})
    return found.pop().lower() if len(found) == 1 and len(nodes) > 1 and not may_be_parts else ""


def _precision(
    role: LayerRole, layer: Mapping[str, Any], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> tuple[str, str]:
    if role == "control":
        return "", "computes nothing itself"
    if layer["type"] in _MOVES and inputs and outputs:
        before, after = inputs[0].dtype, outputs[0].dtype
        return (after, "moves data") if before == after else (f"{before}{CONVERTS}{after}", "converts data")
    if layer["type"] == _PARTS:
        return "", "a compiled part of the model: types inside it are not recorded"
    precision, basis = layer["precision"]
    return precision, basis


def _tensor(layer: Mapping[str, Any], port: int, origins: _Origins) -> TensorInfo | None:
    """Return an output of a layer; None if its shape is dynamic, so that its size is unknown."""
    written = layer["writes"][port] if port < len(layer["writes"]) else None
    if written is None or written["shape"] is None or written["dtype"] in ("undefined", ""):
        return None
    name = origins.tensor_of(layer) if port == 0 else ""
    return TensorInfo(name=name, dtype=written["dtype"], shape=tuple(written["shape"]))


def _macs(nodes: Sequence[ir.Node], outputs: Sequence[TensorInfo], inputs: Sequence[TensorInfo]) -> int | None:
    """Return the products of the one node that multiplies matrices; None if there are several, or unknown shapes."""
    products = [node for node in nodes if node.op_type in _MULTIPLY]
    if len(products) != 1 or not outputs:
        return None
    node = products[0]
    weight = 3 if node.op_type.startswith("QLinear") else 1
    shapes: list[tuple[int, ...] | None] = [_constant_shape(value) for value in node.inputs]
    attributes = {name: each.value for name, each in node.attributes.items()}
    depth = shapes[weight] if len(shapes) > weight else None
    if "Conv" not in node.op_type and depth is not None and len(depth) > 1:
        # OpenVINO may have transposed the left operand: the constant one shows over how many elements the sums are.
        length = depth[-1] if attributes.get("transB") else depth[-2]
        shapes[0], attributes = (length, length), {}
    elif inputs:
        shapes[0] = inputs[0].shape
    return count_macs(node.op_type, shapes, [outputs[0].shape], attributes)


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant, also of one that is quantized."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in ("DequantizeLinear", "Constant", "Cast", "Identity"):
            return None
        if producer.op_type == "Constant":
            tensor = producer.attributes.get("value")
            return None if tensor is None else tuple(int(size) for size in tensor.as_tensor().shape.numpy())
        value = producer.inputs[0]
    return None if value is None or value.const_value is None else tuple(map(int, value.const_value.shape.numpy()))
