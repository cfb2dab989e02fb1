"""The record of a layer: its tensors, role, kernel and amount of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.measure.layer_origins import origin_name
from ndld_flow.measure.layer_tensors import Alignment, align
from ndld_flow.models.layer_evidence import evidence_of
from ndld_flow.models.node_precision import precision_of
from ndld_flow.precision.constraints.constraints import join_precisions
from ndld_flow.profiles.read.layer_work import count_macs
from ndld_flow.profiles.read.onnxruntime_profile import MeasuredNode
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.profile import Layer, LayerRole

_REFORMATS = ("ReorderInput", "ReorderOutput")
_CONTROL = ("If", "Loop", "Scan")
_BLOCKED = "com.microsoft.nchwc"


@dataclass(frozen=True)
class RunNode:
    """A measured node, its node in the optimised model, and the original nodes of that one."""

    measured: MeasuredNode
    ran: ir.Node | None
    """None where the optimised model is not known."""
    origins: tuple[ir.Node, ...]
    times_per_pass: float


def describe_layer(index: int, node: RunNode) -> Layer:
    """Return the layer at this position in the order of execution."""
    measured, ran = node.measured, node.ran
    inputs = align(measured.inputs, None if ran is None else ran.inputs)
    outputs = align(measured.outputs, None if ran is None else ran.outputs)
    evidence = evidence_of(node.origins)
    return Layer(
        index=index,
        name=measured.name,
        type=measured.op_type,
        provider=measured.provider,
        asked_precision=join_precisions(map(precision_of, node.origins)),
        inputs=inputs.infos,
        outputs=outputs.infos,
        onnx_nodes=tuple(map(origin_name, node.origins)),
        depth=measured.depth,
        samples_ms=measured.self_ms,
        role=_role(node),
        tactic=_tactic(ran, inputs),
        macs=_macs(node, inputs, outputs),
        read_bytes=round(sum(operand.bytes for operand in inputs.known) * node.times_per_pass),
        written_bytes=round(sum(operand.bytes for operand in outputs.known) * node.times_per_pass),
        groups=ran.attributes.get_int("group", 1) if ran is not None and "Conv" in ran.op_type else None,
        weight_bytes=sum(operand.bytes for operand in inputs.known if operand.is_weight),
        weights=evidence.weights,
        attributes=evidence.attributes,
    ).with_arithmetic()


def _role(node: RunNode) -> LayerRole:
    kind = node.measured.op_type
    if kind in _REFORMATS or (kind == "Transpose" and node.ran is not None and not node.origins):
        return "reformat"
    if kind in QUANTIZING_TYPES:
        return "quantize"
    if kind == "Cast":
        return "cast"
    if kind.startswith("Memcpy"):
        return "copy"
    return "control" if kind in _CONTROL else "compute"


def _tactic(ran: ir.Node | None, inputs: Alignment) -> str:
    """Describe ONNX Runtime's kernel: its own domain, a fused activation, packed weights."""
    if ran is None:
        return ""
    activation = ran.attributes.get_string("activation", "")
    kernel = f"{ran.domain.rpartition('.')[2]}.{ran.op_type}" if ran.domain else ""
    kernel_text = f"{kernel or ran.op_type}({activation})" if activation else kernel
    return ", ".join(filter(None, (kernel_text, "packed weights" if inputs.packed else "")))


def _macs(node: RunNode, inputs: Alignment, outputs: Alignment) -> int | None:
    shapes = list(inputs.shapes)
    written = list(outputs.shapes)
    if node.ran is not None and node.ran.domain == _BLOCKED:
        _without_padding(node.origins, shapes, written)
    once = count_macs(node.measured.op_type, shapes, written, {} if node.ran is None else _attributes(node.ran))
    return None if once is None else round(once * node.times_per_pass)


def _without_padding(
    origins: Sequence[ir.Node], inputs: list[tuple[int, ...] | None], outputs: list[tuple[int, ...] | None]
) -> None:
    """Replace padded channels of the blocked layout by those of the model, which the original filter shows."""
    filters = [_constant_shape(origin.inputs[1]) for origin in origins if origin.op_type == "Conv"]
    if len(filters) != 1 or filters[0] is None or len(inputs) < 2 or not outputs or outputs[0] is None:
        return
    inputs[1] = filters[0]
    outputs[0] = (outputs[0][0], filters[0][0], *outputs[0][2:])


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    return None if tensor is None else tuple(int(size) for size in tensor.shape.numpy())


def _attributes(node: ir.Node) -> Mapping[str, object]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
