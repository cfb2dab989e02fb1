"""Basic edits, which keep a model valid and its names meaningful.

A tensor's name survives as long as a tensor with the same values exists: readers that use tensor names (profiles,
comparisons, people) find the same values under the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.models.element_types import FLOATS, functions_by_graph, is_op
from ndld_flow.models.files import all_graphs
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import add_initializer, free_name, graph_of, is_used, put_constant, values_of

Array = npt.NDArray[Any]
LARGEST_READ = 64 * 2**20
"""Larger constants are not read by default."""
_FEW_BYTES = 64 * 2**10
_FIRST_OPSET_OF_ANY_CONSTANT = 9
"""In earlier opsets Constant supports only floats."""
RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
"""Operators with a different result in every run."""
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


class Edits:
    """A model being changed, and a count of its changes."""

    def __init__(self, model: ir.Model, size_threshold: int | None = None) -> None:
        self.model = model
        self.size_threshold = LARGEST_READ if size_threshold is None else size_threshold
        self._may_grow = size_threshold is not None
        self.done: Counter[str] = Counter()
        """Kind of change -> count."""
        self.left: dict[ir.Node, int] = {}
        """Node that would make the model grow -> bytes that its result adds."""
        self.unfoldable: set[ir.Node] = set()
        """Nodes whose evaluation failed; they are not tried again."""
        self._function_count = 0
        self._functions: dict[ir.Graph, ir.Function] = {}
        self._names = {""}
        for graph in self.graphs():
            self._names |= {value.name or "" for value in values_of(graph)}

    def pays(self, added: float, freed: float) -> bool:
        """Return whether constants may be replaced by others: if that frees as many bytes as it adds, or adds few."""
        return self._may_grow or added - freed <= _FEW_BYTES

    def graphs(self) -> Iterator[ir.Graph]:
        """Yield the main graph, its subgraphs, then functions' bodies."""
        return all_graphs(self.model)

    def nodes(self, *op_types: str) -> Iterator[ir.Node]:
        """Yield the nodes of these standard operators in all graphs, without those that were removed meanwhile."""
        for graph in self.graphs():
            for node in tuple(graph):
                if is_op(node, *op_types) and node.graph is not None:
                    yield node

    def opset(self, graph: ir.Graph | None) -> int:
        """Return the version of the default domain in a graph; a function may import its own."""
        function = None if graph is None else self._function_of().get(graph)
        own = None if function is None else function.opset_imports.get("")
        return own or self.model.opset_imports.get("", 0)

    def may_hold_initializers(self, graph: ir.Graph) -> bool:
        """Return whether a graph may have initializers; bodies of functions may not."""
        return graph not in self._function_of()

    def _function_of(self) -> dict[ir.Graph, ir.Function]:
        """Return graph -> the function that it belongs to. No edit moves a graph in or out of a function."""
        if len(self.model.functions) != self._function_count:
            self._function_count = len(self.model.functions)
            self._functions = functions_by_graph(self.model)
        return self._functions

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a constant value: an initializer that cannot be overridden, or a Constant's output."""
        if value is None:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else value.const_value
        producer = value.producer()
        if producer is None or producer.op_type != "Constant" or producer.domain != "":
            return None
        attribute = producer.attributes.get("value")
        return None if attribute is None or attribute.is_ref() else attribute.as_tensor()

    def array(self, value: ir.Value | None) -> Array | None:
        """Return a constant's array, unless it exceeds the size threshold."""
        tensor = self.constant(value)
        if tensor is None or tensor.nbytes > self.size_threshold or isinstance(tensor, SparseInitializer):
            return None
        return tensor.numpy()

    def axes(self, node: ir.Node) -> tuple[int, ...] | None:
        """Return the axes in a node's second input or attribute; None if there are none, or they are computed."""
        if len(node.inputs) < 2:
            return ints_attribute(node, "axes")
        array = self.array(node.inputs[1])
        return None if array is None else tuple(int(axis) for axis in array.reshape(-1))

    def new_name(self, wanted: str) -> str:
        """Return `wanted`, or the first unused of `wanted_2`, `wanted_3`, ..."""
        return free_name(wanted, self._names)

    def add_initializer(self, graph: ir.Graph, array: Array, wanted: str) -> ir.Value:
        """Add a constant to a graph; in a function's body, a Constant node at its start."""
        name = self.new_name(wanted)
        tensor = ir.Tensor(np.asarray(array, order="C"), name=name)
        if self.may_hold_initializers(graph):
            return add_initializer(graph, tensor)
        value = ir.Value(name=name)
        put_constant(graph, value, tensor)
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Redirect all readers of `old` to `new`, which must always have the same values.

        Returns False if that is impossible: a graph output needs a producer in its own graph, and keeps its name.
        """
        if old.is_graph_output():
            if not self.may_replace(old, new):
                return False
            graph = old.graph
            assert graph is not None
            name = old.name
            old.name = self.new_name(f"{name}_before")
            new.name = name
            while old in graph.outputs:
                graph.outputs[graph.outputs.index(old)] = new
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)
        return True

    def may_replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Return whether `replace` and `take_over` will succeed."""
        if not old.is_graph_output():
            return True
        producer = new.producer()
        return producer is not None and producer.graph is old.graph and not new.is_graph_output()

    def bypass(self, node: ir.Node, value: ir.Value | None, what: str) -> bool:
        """Remove a node whose only used output equals `value`."""
        if value is None or any(map(is_used, node.outputs[1:])):
            return False
        if not self.replace(node.outputs[0], value):
            return False
        self.remove(node)
        self.done[what] += 1
        return True

    def take_over(self, keeper: ir.Value, absorbed: ir.Value) -> bool:
        """Give `keeper`, which now has the values of `absorbed`, its readers and its name."""
        name, shape, type_ = absorbed.name, absorbed.shape, absorbed.type
        if absorbed.is_graph_output():
            if not self.replace(absorbed, keeper):
                return False
        else:
            self.replace(absorbed, keeper)
            absorbed.name = self.new_name(f"{name}_before")
            keeper.name = name
        keeper.shape, keeper.type = shape, type_
        return True

    def remove(self, node: ir.Node) -> None:
        """Remove a node without readers from its graph."""
        assert node.graph is not None
        node.graph.remove(node, safe=True)

    def set_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Replace a node's output by a constant of the same name; remove the node if no other output is read."""
        node = value.producer()
        assert node is not None
        graph = graph_of(node)
        tensor.name = value.name
        if value.is_graph_output() or not self.may_hold_initializers(graph):
            self._put_constant_node(node, value, tensor, graph)
            return
        new = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
        self.replace(value, new)
        value.name = self.new_name(f"{value.name}_before")
        self._remove_if_unused(node)
        graph.register_initializer(new)

    def _put_constant_node(self, node: ir.Node, value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> None:
        if node.op_type == "Constant" or (
            self.opset(graph) < _FIRST_OPSET_OF_ANY_CONSTANT and tensor.dtype not in FLOATS
        ):
            return
        constant = ir.node("Constant", [], {"value": tensor}, name=node.name)
        constant.outputs[0].type, constant.outputs[0].shape = value.type, value.shape
        constant.outputs[0].name = self.new_name(f"{value.name}_constant")
        graph.insert_before(node, constant)
        if not self.take_over(constant.outputs[0], value):
            self.remove(constant)
            return
        self._remove_if_unused(node)

    def _remove_if_unused(self, node: ir.Node) -> None:
        if not any(map(is_used, node.outputs)):
            self.remove(node)


def only_reader(value: ir.Value) -> bool:
    """Return whether exactly one node input reads the value and it is not a graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def producer_of_type(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the producer of a value if it is one of these standard operators."""
    node = value.producer() if value is not None else None
    return node if is_op(node, *op_types) else None


def int_attribute(node: ir.Node, name: str, default: int) -> int | None:
    """Return an int attribute; None if it refers to a function's attribute and so is unknown."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


def ints_attribute(node: ir.Node, name: str) -> tuple[int, ...] | None:
    """Return an ints attribute; None if absent or unknown."""
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())


Dim = int | str | None


def dims_of(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """Return the dimensions of a value: sizes, names, or None if unknown; None if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def same_known_dims(first: tuple[Dim, ...] | None, second: tuple[Dim, ...] | None) -> bool:
    """Return whether two shapes are known to be equal."""
    return first is not None and first == second and None not in first
