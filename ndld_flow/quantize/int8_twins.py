"""A prepared model that has the nodes of its quantised form too, each of which can take its node's place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.tensors import Array
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.quantize.prepared_model import QuantizableNode

_ROUNDING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Twins:
    """A model in which each quantised node has a twin, which reads the same values and rounds them."""

    path: Path
    twins: Mapping[str, str]
    """The node's first output -> the twin's."""
    which: str
    """An int64 input: the number of the twin, as in `twins`, whose output all others read in place of the node's."""
    outputs: Mapping[str, str]
    """The model's outputs -> what holds them with that twin's error."""
    lost: Mapping[str, float]
    """The node's first output -> share of its weights, other than 0, that are 0 in integers."""


def write_twins(prepared: Path, nodes: Iterable[QuantizableNode], quantized: Path, target: Path) -> Twins:
    """Write the model to `target`, with twins of the quantised `nodes`.

    `quantized` has Q/DQ pairs; what has integer operators instead has no twins. Raises `ModelError`.
    """
    model = load_model(prepared)
    wanted = {node.name for node in nodes}
    maker = _TwinMaker(model)
    for node in load_model(quantized).graph:
        if is_op(node, *_ROUNDING):
            maker.copy(node)
        elif node.name in wanted and any(map(_is_rounded, node.inputs)):
            maker.twin(node)
    outputs = maker.let_choose()
    model.graph.sort()
    save_model(model, target)
    twins = {value.name or "": twin.name or "" for value, twin in maker.twins.items()}
    return Twins(target, twins, maker.which.name or "", outputs, maker.lost)


def _is_rounded(value: ir.Value | None) -> bool:
    return value is not None and is_op(value.producer(), "DequantizeLinear")


def _lost(weight: ir.Value | None, rounded: ir.Value | None) -> float:
    """Share of a weight's values, other than 0, that are 0 once they are rounded; 0 where it is no weight."""
    source = rounded.producer() if rounded is not None else None
    if weight is None or weight.const_value is None or source is None or not is_op(source, "DequantizeLinear"):
        return 0.0
    whole, zero = source.inputs[0], source.inputs[2] if len(source.inputs) > 2 else None
    if whole is None or whole.const_value is None or not np.any(values := weight.const_value.numpy()):
        return 0.0
    integers = whole.const_value.numpy()
    zeros = _along(zero.const_value.numpy(), integers, source) if zero is not None and zero.const_value else 0
    return float(np.count_nonzero((integers == zeros) & (values != 0)) / np.count_nonzero(values))


def _along(zeros: Array, integers: Array, node: ir.Node) -> Array:
    """Zero points of channels, of a shape that goes with the weight's."""
    if zeros.ndim == 0:
        return zeros
    shape = [1] * integers.ndim
    shape[node.attributes.get_int("axis", 1)] = -1
    return zeros.reshape(shape)


class _TwinMaker:
    """Copies nodes of the quantised model, in its order, to the other one."""

    def __init__(self, model: ir.Model) -> None:
        self.twins: dict[ir.Value, ir.Value] = {}
        self.lost: dict[str, float] = {}
        self._graph = model.graph
        self._names = UniqueNames(model)
        self._nodes = {node.name: node for node in model.graph}
        self._values: dict[str, ir.Value] = dict(model.graph.initializers)
        self._values.update({value.name or "": value for value in model.graph.inputs})
        self._made: dict[ir.Value, ir.Value] = {}
        self._copies: set[ir.Node] = set()
        int64 = ir.TensorType(ir.DataType.INT64)
        self.which = ir.Value(name=self._names.value("which"), shape=ir.Shape([]), type=int64)

    def twin(self, node: ir.Node) -> None:
        """Copy a node that stands in both models."""
        own = self._nodes[node.name]
        self.twins[own.outputs[0]] = self.copy(node).outputs[0]
        lost = [_lost(*pair) for pair in zip(own.inputs, node.inputs, strict=True)]
        self.lost[own.outputs[0].name or ""] = max(lost, default=0.0)

    def let_choose(self) -> dict[str, str]:
        """Let one twin at a time take its node's place. Returns the model's outputs -> what holds them then."""
        self._graph.inputs.append(self.which)
        chosen: dict[str, str] = {}
        for number, (value, twin) in enumerate(self.twins.items()):
            readers = [(node, index) for node, index in value.uses() if node not in self._copies]
            this = self._add("Equal", [self.which, self._number(number)], f"{value.name}_is_chosen")
            either = self._add("Where", [this, twin, value], f"{value.name}_chosen")
            for node, index in readers:
                node.replace_input_with(index, either)
            chosen[value.name or ""] = either.name or ""
        names = [value.name or "" for value in self._graph.outputs]
        return {name: chosen.get(name, name) for name in names}

    def copy(self, node: ir.Node) -> ir.Node:
        """Copy a node; it reads copies of what rounds, and else what the other model's own nodes make."""
        outputs = [ir.Value(name=value.name and self._names.value(f"{value.name}_alone")) for value in node.outputs]
        inputs = [None if value is None else self._here(value) for value in node.inputs]
        name = self._names.node(f"{node.name or node.op_type}_alone")
        attributes = node.attributes.values()
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs, name=name)
        self._graph.append(copy)
        self._copies.add(copy)
        if is_op(node, *_ROUNDING):
            self._made.update(zip(node.outputs, outputs, strict=True))
        return copy

    def _here(self, value: ir.Value) -> ir.Value:
        """A value of the quantised model in the other one. Outputs may be named otherwise there, nodes are not."""
        if value in self._made:
            return self._made[value]
        producer = value.producer()
        if producer is not None:
            return self._nodes[producer.name].outputs[value.index() or 0]
        name = value.name or ""
        if name not in self._values:
            self._values[name] = self._weight(value)
        return self._values[name]

    def _add(self, op_type: str, inputs: Sequence[ir.Value], wish: str) -> ir.Value:
        output = ir.Value(name=self._names.value(wish))
        self._graph.append(ir.Node("", op_type, inputs, outputs=[output], name=self._names.node(wish)))
        return output

    def _number(self, number: int) -> ir.Value:
        value = ir.Value(name=self._names.value(f"number_{number}"), shape=ir.Shape([]), type=self.which.type)
        value.const_value = ir.tensor(number, dtype=ir.DataType.INT64, name=value.name)
        self._graph.register_initializer(value)
        return value

    def _weight(self, value: ir.Value) -> ir.Value:
        """A scale, a zero point or a weight in integers."""
        copy = ir.Value(name=self._names.value(value.name or ""), shape=value.shape, type=value.type)
        copy.const_value = value.const_value
        self._graph.register_initializer(copy)
        return copy
