"""Layers in the form that ONNX Runtime's quantizers read correctly: in float32, and with weights of their own.

Measured with ONNX Runtime 1.31: its quantizers write `QuantizeLinear` nodes of contradictory types for float16, read a
weight with two axes or transpositions only in one of them, and ignore `alpha` and `beta` of a Gemm.

They reach the main graph only. With `mode: dynamic` the nodes that replace a layer depend on its inputs alone, so the
layer may be anywhere meanwhile: it reads inputs of the model in place of the body's tensors, and `Identity` nodes in
the body keep the names of what it reads and computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ndld_flow.models.element_types import is_op
from ndld_flow.models.lazy_tensors import ConvertedTensor, TransposedTensor
from ndld_flow.models.nodes import UniqueNames, add_initializer, graph_of
from ndld_flow.quantize.prepared_model import gemm_columns, is_transposed_weight, layer_weight
from ndld_flow.quantize.settings import QuantizeSettings
from ndld_flow.quantize.weight_tensors import ScaledTensor


@dataclass
class BodyLayers:
    """Layers that moved to the main graph of a model."""

    inputs: dict[tuple[ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)
    """Tensor and the body that reads it -> the input of the model that replaces it."""
    constants: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Constant of a body -> its copy in the main graph."""
    before: list[str] = field(default_factory=list)
    """Names of the nodes that read these tensors, in the order of the inputs."""
    after: list[str] = field(default_factory=list)
    """Names of the nodes that read the outputs of the layers."""

    def move(self, node: ir.Node, main: ir.Graph, names: UniqueNames) -> None:
        """Move a layer from its body to the main graph."""
        body = graph_of(node)
        for index, value in enumerate(node.inputs):
            if value is None or (value.const_value is not None and value.graph is main):
                continue
            moved = self._constant(value, main, names) if value.const_value is not None else None
            node.replace_input_with(index, moved or self._input(value, node, main, names))
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                self._replace_output(value, node, names)
        body.remove(node)
        main.append(node)

    def _constant(self, value: ir.Value, main: ir.Graph, names: UniqueNames) -> ir.Value:
        if value not in self.constants:
            copy = ir.Value(name=names.value(f"{value.name}_main"), type=value.type, shape=value.shape)
            copy.const_value = value.const_value
            main.register_initializer(copy)
            self.constants[value] = copy
        return self.constants[value]

    def _input(self, value: ir.Value, node: ir.Node, main: ir.Graph, names: UniqueNames) -> ir.Value:
        body = graph_of(node)
        if (value, body) not in self.inputs:
            name = names.node(f"{node.name}_reads")
            node.prepend(ir.Node("", "Identity", [value], name=name))
            self.before.append(name)
            made = ir.Value(name=names.value(name), type=value.type, shape=value.shape)
            main.inputs.append(made)
            self.inputs[value, body] = made
        return self.inputs[value, body]

    def _replace_output(self, value: ir.Value, node: ir.Node, names: UniqueNames) -> None:
        """Give the readers of a layer's output the output of a node of the body, which gets its name."""
        inner = ir.Value(type=value.type, shape=value.shape)
        ir.convenience.replace_all_uses_with(value, inner, replace_graph_outputs=True)
        name = names.node(f"{node.name}_computes")
        node.append(ir.Node("", "Identity", [value], outputs=[inner], name=name))
        self.after.append(name)
        inner.name, value.name = value.name, names.value(name)

    def put_back(self, model: ir.Model) -> None:
        """Move the nodes that replaced the layers to the bodies in which the layers were."""
        nodes = {node.name: node for node in model.graph.all_nodes()}
        inputs = {value.name: value for value in model.graph.inputs}
        for read, name in zip(self.inputs.values(), self.before, strict=True):
            made, reader = inputs[read.name], nodes[name]
            body = graph_of(reader)
            moved = _readers(made, model.graph)
            model.graph.remove(moved)
            body.extend(moved)
            tensor = reader.inputs[0]
            assert tensor is not None
            ir.convenience.replace_all_uses_with(made, tensor)
            model.graph.inputs.remove(made)
            body.remove(reader, safe=True)
        for name in self.after:
            node = nodes[name]
            value, inner = node.inputs[0], node.outputs[0]
            assert value is not None and isinstance(node.graph, ir.Graph)
            ir.convenience.replace_all_uses_with(inner, value, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
            value.name = inner.name


def _readers(value: ir.Value, main: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the main graph that depend on a value."""
    found: dict[ir.Node, None] = {}
    waiting = [value]
    while waiting:
        for node, _ in waiting.pop().uses():
            if node.graph is main and node not in found:
                found[node] = None
                waiting += node.outputs
    return list(found)


_QUANTIZER_SUFFIXES = (
    "_DequantizeLinear_Output", "_QuantizeLinear_Output", "_output_quantized", "_output_quantized_cast_output",
    "_quantized", "_quantized_scale", "_quantized_zero_point", "_scale", "_zero_point",
)  # fmt: skip
_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
COPIED, TURNED, WIDENED = "copy", "transposed", "fp32"
"""Changes of a weight that can be undone."""


@dataclass(frozen=True)
class WeightRole:
    """The way in which a layer reads a constant."""

    axis: int | None = None
    """Axis of its channels, for a weight whose scales depend only on the extremes; None for one scale."""
    by_extremes: bool = False
    """True if a stand-in with the extremes may replace it while ONNX Runtime's quantizer runs."""
    owner: str = ""
    """Name of the only node that may read it; empty if several may."""


@dataclass
class IsolatedLayers:
    """The layers to quantize in a model that is changed in place."""

    model: ir.Model
    settings: QuantizeSettings
    nodes: list[ir.Node]
    """The layers, in the order of execution."""
    renamed: dict[str, str] = field(default_factory=dict)
    """New tensor -> the tensor of the prepared model that has the same values."""
    roles: dict[ir.Value, WeightRole] = field(default_factory=dict)
    """Constant that only the layers read -> the way in which they do."""
    origins: dict[ir.Value, tuple[ir.Value, str]] = field(default_factory=dict)
    """New constant -> the constant that it was made of, and the change."""
    of_bodies: BodyLayers = field(default_factory=BodyLayers)
    _constants: dict[tuple[ir.Value, str], ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = UniqueNames(self.model)

    def isolate(self) -> None:
        """Rewrite the layers for the mode of the settings, and sort the graph."""
        for position, node in enumerate(self.nodes):
            self._use_transposed_weights(node)
            if self.settings.mode == "dynamic" and node.graph is not self.model.graph:
                self.of_bodies.move(node, self.model.graph, self._names)
            if is_op(node, "Gemm"):
                self._fold_factors(node)
                if self.settings.mode == "static":
                    self._make_vector(node)
                else:
                    self.nodes[position] = self._split(node)
        self.origins |= {copy: (value, COPIED) for value, copy in self.of_bodies.constants.items()}
        if self.settings.mode != "weight_only":
            self._widen()
            self._own_constants()
            self._free_names()
        self.model.graph.sort()

    def _use_transposed_weights(self, node: ir.Node) -> None:
        """Make a layer read a transposed constant instead of a Transpose of one."""
        for index, value in enumerate(node.inputs):
            producer = value.producer() if value is not None and is_transposed_weight(value) else None
            if producer is None or producer.inputs[0] is None:
                continue
            node.replace_input_with(index, self._transposed(producer.inputs[0]))
            unread = not producer.outputs[0].uses() and not producer.outputs[0].is_graph_output()
            if unread and producer.graph is not None:
                producer.graph.remove(producer, safe=True)

    def _fold_factors(self, gemm: ir.Node) -> None:
        """Multiply the operands of a Gemm by its `alpha` and `beta`."""
        second, third = gemm.inputs[1], gemm.inputs[2] if len(gemm.inputs) > 2 else None
        alpha, beta = (gemm.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        for name in ("alpha", "beta"):
            gemm.attributes.pop(name, None)
        if second is not None and alpha != 1.0:
            gemm.replace_input_with(1, self._scaled(gemm, second, alpha))
        if third is not None and not beta:
            gemm.resize_inputs(2)
        elif third is not None and beta != 1.0:
            gemm.replace_input_with(2, self._scaled(gemm, third, beta))

    def _make_vector(self, gemm: ir.Node) -> None:
        """Give the constant bias of a Gemm one dimension, as the quantizer expects."""
        bias, weight = (layer_weight(gemm, index) for index in (2, 1))
        if bias is None or weight is None or bias.const_value is None:
            return
        columns = gemm_columns(gemm, weight)
        if tuple(bias.const_value.shape.numpy()) == (columns,):
            return

        def repeat(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
            return ir.Tensor(np.broadcast_to(tensor.numpy().ravel(), (columns,)).copy(), name=name)

        gemm.replace_input_with(2, self._constant(bias, f"vector {columns}", repeat))

    def _split(self, gemm: ir.Node) -> ir.Node:
        """Replace a Gemm by a MatMul, which gets its name, and an Add; return the MatMul."""
        first, second = gemm.inputs[0], gemm.inputs[1]
        third = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        assert first is not None and second is not None
        swap = {"perm": [1, 0]}
        if gemm.attributes.get_int("transA", 0):
            first = self._insert(gemm, "Transpose", [first], swap)
        if gemm.attributes.get_int("transB", 0):
            second = self._transposed(second)
        gemm.attributes.clear()
        gemm.resize_inputs(2)
        if third is None:
            gemm.op_type = "MatMul"
            gemm.replace_input_with(0, first)
            gemm.replace_input_with(1, second)
            return gemm
        name, gemm.name = gemm.name or "", self._names.node(f"{gemm.name}_Add")
        product = self._insert(gemm, "MatMul", [first, second], {}, name)
        product.shape = gemm.outputs[0].shape
        gemm.op_type = "Add"
        gemm.replace_input_with(0, product)
        gemm.replace_input_with(1, third)
        matmul = product.producer()
        assert matmul is not None
        return matmul

    def _transposed(self, value: ir.Value) -> ir.Value:
        return self._constant(value, TURNED, lambda tensor, name: TransposedTensor(tensor, (1, 0), name))

    def _scaled(self, node: ir.Node, value: ir.Value, factor: float) -> ir.Value:
        if value.const_value is not None:
            return self._constant(value, f"times {factor}", lambda tensor, name: ScaledTensor(tensor, factor, name))
        kind = value.dtype or _FLOAT
        number = ir.tensor(np.array(factor, kind.numpy()), dtype=kind)
        return self._insert(node, "Mul", [value, self._register(number, f"{node.name}_factor")], {})

    def _insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, int | Sequence[int]],
        name: str = "",
    ) -> ir.Value:
        """Insert a node; return its output, of the type of its first input."""
        name = name or self._names.node(f"{before.name}_{op_type}")
        output = ir.Value(name=self._names.value(f"{name}_out"), type=inputs[0].type)
        items = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()]
        node = ir.Node("", op_type, inputs, items, outputs=[output], name=name)
        before.prepend(node)
        return output

    def _constant(
        self, value: ir.Value, change: str, derive: Callable[[ir.TensorProtocol, str], ir.TensorProtocol]
    ) -> ir.Value:
        """Return a constant derived from another one: the same one for all its readers."""
        key = (value, change)
        if key not in self._constants:
            assert value.const_value is not None
            name = self._names.value(f"{value.name}_{change.partition(' ')[0]}")
            self._constants[key] = self._register(derive(value.const_value, name), name)
            self.origins[self._constants[key]] = key
        return self._constants[key]

    def _register(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add a constant to the main graph, whose constants all bodies may read."""
        if name in self.model.graph.initializers:
            name = self._names.value(name)
        tensor.name = name
        return add_initializer(self.model.graph, tensor)

    def _widen(self) -> None:
        """Compute the layers of a float16 model in float32, with a Cast wherever they meet others."""
        layers = set(self.nodes)
        for node in self.nodes:
            for value in node.outputs:
                if value.dtype == _HALF:
                    self._widen_output(value, layers)
        wide: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            for index, read in enumerate(node.inputs):
                if read is not None and read.dtype == _HALF:
                    if read not in wide:
                        wide[read] = self._wide(read, node)
                    node.replace_input_with(index, wide[read])

    def _wide(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        if value.const_value is not None:
            return self._constant(value, WIDENED, lambda tensor, name: ConvertedTensor(tensor, _FLOAT, name))
        output = self._insert(reader, "Cast", [value], {"to": int(_FLOAT)})
        output.type, output.shape = ir.TensorType(_FLOAT), value.shape
        self.renamed[output.name or ""] = value.name or ""
        return output

    def _widen_output(self, value: ir.Value, layers: Collection[ir.Node]) -> None:
        node = value.producer()
        assert node is not None
        value.type = ir.TensorType(_FLOAT)
        others = [(user, index) for user, index in value.uses() if user not in layers]
        if not others and not value.is_graph_output():
            return
        name = value.name or ""
        narrow = ir.Value(name=self._names.value(f"{name}_fp16"), type=ir.TensorType(_HALF), shape=value.shape)
        attributes = [ir.AttrInt64("to", int(_HALF))]
        node.append(ir.Node("", "Cast", [value], attributes, outputs=[narrow], name=self._names.node(f"{name}_Cast")))
        for user, index in others:
            user.replace_input_with(index, narrow)
        if value.is_graph_output():
            value.name = self._names.value(f"{name}_fp32")
            narrow.name = name
            self.renamed[value.name] = name
            outputs = self.model.graph.outputs
            for position, output in enumerate(outputs):
                if output is value:
                    outputs[position] = narrow

    def _own_constants(self) -> None:
        """Give the layers weights that nothing else reads, and one for each way of reading it."""
        layers = set(self.nodes)
        owned: dict[tuple[ir.Value, WeightRole], ir.Value] = {}
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                if value is None or value.const_value is None or value.dtype != _FLOAT:
                    continue
                key = (value, self._role(node, index, value.const_value))
                if key not in owned:
                    owned[key] = self._owned(value, layers)
                    self.roles[owned[key]] = key[1]
                if owned[key] is not value:
                    node.replace_input_with(index, owned[key])

    def _owned(self, value: ir.Value, layers: Collection[ir.Node]) -> ir.Value:
        """Return the constant itself if only layers read it, all in one way; else a copy."""
        shared = value in self.roles or value.is_graph_output() or value.is_graph_input()
        if not shared and all(user in layers for user, _ in value.uses()):
            return value
        assert value.const_value is not None
        name = self._names.value(f"{value.name}_{COPIED}")
        copy = self._register(ScaledTensor(value.const_value, 1.0, name), name)
        self.origins[copy] = (value, COPIED)
        return copy

    def _free_names(self) -> None:
        """Rename tensors whose names the quantizer gives to its own: it does not look for them."""
        taken = [value.name for node in self.nodes for value in (*node.inputs, *node.outputs) if value and value.name]
        prefixes = {f"{name}{suffix}" for name in taken for suffix in _QUANTIZER_SUFFIXES}
        for graph in self.model.graphs():
            values = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
            for value in values:
                name = value.name or ""
                if name in prefixes and not value.is_graph_input() and not value.is_graph_output():
                    value.name = self._names.value(f"{name}_of_model")
                    self.renamed[value.name] = self.renamed.get(name, name)

    def _role(self, node: ir.Node, index: int, tensor: ir.TensorProtocol) -> WeightRole:
        rank = len(tensor.shape)
        if is_op(node, "LSTM"):
            return WeightRole(owner=node.name or "")
        if self.settings.mode == "dynamic":
            if is_op(node, "MatMul") and index == 1 and rank == 2:
                return WeightRole(1 if self.settings.per_channel else None, by_extremes=True)
            return WeightRole(None, by_extremes=is_op(node, "Gather") and index == 0)
        if is_op(node, "Conv", "ConvTranspose", "Gemm") and index == 2:
            # The quantizer copies a shared bias under a name that another tensor may have.
            return WeightRole(owner=node.name or "")
        axes = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 0 if node.attributes.get_int("transB", 0) else 1}
        if not is_op(node, *axes) or rank < 2 or (index != 1 and node.op_type != "MatMul"):
            return WeightRole()
        # A QLinearMatMul reads its first input with one scale, a constant too.
        by_channels = self.settings.per_channel and (index == 1 or self.settings.format == "qdq")
        return WeightRole(axes[node.op_type] if by_channels else None, by_extremes=True)
