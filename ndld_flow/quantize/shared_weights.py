"""Weights of quantized layers that other nodes read in floats.

Both forms would take more bytes than the source. So the integers alone are stored, and nodes in the main graph make
floats of them: Cast and Mul, which runtimes compute when they load a model. ONNX Runtime computes a DequantizeLinear in
every inference, which took a third of the time of LSTMs in Loops. TensorRT reads integers of 8 bits in DequantizeLinear
only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.quantize.isolated_layers import COPIED, TURNED, WIDENED, IsolatedLayers, WeightRole
from ndld_flow.quantize.settings import Target

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
        broadcast = ir.Value(
            name=factor.name, type=scale.type, shape=ir.Shape(factor.shape.numpy()), const_value=factor
        )
        self._main.register_initializer(broadcast)
        return self.add("Mul", [self.add("Cast", [integers], {"to": int(ir.DataType.FLOAT)}), broadcast], {})

    def add(self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int | Sequence[int]]) -> ir.Value:
        name = self._names.node(f"{inputs[0].name}_{op_type}")
        items = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()]
        output = ir.Value(name=self._names.value(f"{name}_out"))
        self._main.append(ir.Node("", op_type, inputs, items, outputs=[output], name=name))
        return output
