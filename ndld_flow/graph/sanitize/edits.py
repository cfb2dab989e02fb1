"""Basic edits, which keep a model valid and its names meaningful.

A tensor's name survives as long as a tensor with the same values exists: readers that use tensor names (profiles,
comparisons, people) find the same values under the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from ndld_flow.models.element_types import FLOATS, functions_by_graph, is_op, subgraphs_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.lazy_tensors import SparseInitializer, byte_pieces
from ndld_flow.models.nodes import (
    add_initializer,
    constant_of,
    free_name,
    graph_of,
    is_used,
    precision_of,
    put_constant,
    remove_node,
    values_of,
)
from ndld_flow.models.tensor_statistics import digest_of

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
        """Remove a node without readers, and its bodies: their nodes would count as readers of outer values."""
        remove_node(node)

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


_FIRST_IR_WITH_FREE_INITIALIZERS = 4


def detach_initializers_from_inputs(edits: Edits) -> None:
    """Remove initializers from the inputs, where models before IR version 4 had to list them."""
    model = edits.model
    if model.ir_version is None or model.ir_version >= _FIRST_IR_WITH_FREE_INITIALIZERS:
        return
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    if len(kept) != len(model.graph.inputs):
        model.graph.inputs[:] = kept
    model.ir_version = _FIRST_IR_WITH_FREE_INITIALIZERS


def lift_constants(edits: Edits) -> None:
    """Constant() -> initializer of the same name, unless it is a graph output"""
    for graph in edits.model.graphs():
        for node in tuple(graph):
            tensor = constant_of(node)
            if tensor is not None and not node.outputs[0].is_graph_output():
                edits.set_constant(node.outputs[0], tensor)
                edits.done["constants converted to initializers"] += 1


def make_names_unique(edits: Edits) -> None:
    """Make names unique; the first of several equal names is kept."""
    _name_scope(tuple(edits.model.graphs()))
    for function in edits.model.functions.values():
        _name_scope((function.graph, *function.subgraphs()))


def _name_scope(graphs: tuple[ir.Graph, ...]) -> None:
    top = graphs[0]
    fixed = {value.name for value in (*top.inputs, *top.outputs) if value.name}
    taken = set(fixed)
    keepers = {id(value) for value in (*top.inputs, *top.outputs)}
    node_names: set[str] = set()
    for graph in graphs:
        for value in values_of(graph):
            if id(value) not in keepers and value.name:
                keepers.add(id(value))
                value.name = free_name(value.name, taken)
        for node in graph:
            output = next((value.name for value in node.outputs if value.name), "unnamed")
            node.name = free_name(node.name or f"{node.op_type}_{output}", node_names)


def remove_unused(edits: Edits) -> None:
    """Remove everything that no output depends on."""
    # Inner graphs from last to first: a node in a branch may be the only reader of one outside.
    for graph in (edits.model.graph, *(f.graph for f in edits.model.functions.values())):
        _remove_unused_nodes(edits, graph)
    for graph in edits.model.graphs():
        for name, value in tuple(graph.initializers.items()):
            if not (is_used(value) or value.is_graph_input()):
                del graph.initializers[name]
                edits.done["unused initializers removed"] += 1
    before = len(edits.model.functions)
    RemoveUnusedFunctionsPass()(edits.model)  # type: ignore[no-untyped-call]
    edits.done["unused functions removed"] += before - len(edits.model.functions)


def _remove_unused_nodes(edits: Edits, graph: ir.Graph) -> None:
    for node in reversed(tuple(graph)):
        if not any(map(is_used, node.outputs)):
            remove_node(node)
            edits.done["unused nodes removed"] += 1
            continue
        for inner in subgraphs_of(node):
            _remove_unused_nodes(edits, inner)


# Engine builders expect a separate Q/DQ pair at each weight and each reader.
_NOT_SHARED = RANDOM | QUANTIZATION
_MAX_KEY_BYTES = 4096
"""Larger attribute tensors are not compared."""


def share_equal_nodes(edits: Edits) -> None:
    """Common subexpressions: f(x), f(x) -> one f(x)"""
    for graph in edits.graphs():
        seen: dict[Hashable, ir.Node] = {}
        for node in tuple(graph):
            key = _node_key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and all(map(edits.replace, node.outputs, first.outputs)):
                edits.remove(node)
                edits.done["duplicate nodes merged"] += 1


def _node_key(node: ir.Node) -> Hashable | None:
    """Return a key that equal nodes share; None for nodes that must not be merged."""
    if node.op_type in _NOT_SHARED or node.domain:
        return None
    if any(value.is_graph_output() for value in node.outputs):
        return None
    attributes = tuple(sorted(map(_attribute_key, node.attributes.values()), key=str))
    if None in attributes:
        return None
    used = tuple(bool(value.name) for value in node.outputs)
    return (node.op_type, precision_of(node), tuple(id(value) for value in node.inputs), attributes, used)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    plain = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
    several = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
    if attribute.is_ref():
        return (attribute.name, "reference", attribute.ref_attr_name)
    if attribute.type in plain:
        return (attribute.name, attribute.type.value, attribute.value)
    if attribute.type in several:
        return (attribute.name, attribute.type.value, tuple(attribute.value))
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().nbytes <= _MAX_KEY_BYTES:
        tensor = attribute.as_tensor()
        return (attribute.name, tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
    return None


def share_equal_initializers(edits: Edits) -> None:
    """Initializers of one graph with the same type, shape and bytes -> one

    Only possible duplicates are read, in pieces, and none larger than the threshold.
    """
    for graph in edits.model.graphs():
        values = [v for v in graph.initializers.values() if not v.is_graph_input() and not v.is_graph_output()]
        for look_alikes in _groups(values, partial(_shallow_key, edits.size_threshold)):
            for equals in _groups(look_alikes, partial(_deep_key, edits.size_threshold)):
                for value in equals[1:]:
                    assert value.name is not None
                    edits.replace(value, equals[0])
                    del graph.initializers[value.name]
                    edits.done["duplicate initializers merged"] += 1


def _groups(values: list[ir.Value], key_of: Callable[[ir.TensorProtocol], Hashable | None]) -> list[list[ir.Value]]:
    """Return the groups of at least two values with equal keys."""
    groups: dict[Hashable, list[ir.Value]] = {}
    for value in values:
        key = key_of(value.const_value) if value.const_value is not None else None
        if key is not None:
            groups.setdefault(key, []).append(value)
    return [group for group in groups.values() if len(group) > 1]


def _shallow_key(threshold: int, tensor: ir.TensorProtocol) -> Hashable | None:
    """Return type, shape and first bytes."""
    if isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return None
    key = (tensor.dtype, tuple(tensor.shape.numpy()))
    return (*key, next(iter(byte_pieces(tensor, _MAX_KEY_BYTES)), b"")) if tensor.nbytes <= threshold else key


def _deep_key(threshold: int, tensor: ir.TensorProtocol) -> Hashable | None:
    """Return a digest; for a tensor over the threshold, its location on disk."""
    if tensor.nbytes > threshold:
        return (tensor.path, tensor.offset) if isinstance(tensor, ir.ExternalTensor) else None
    return digest_of(tensor)
