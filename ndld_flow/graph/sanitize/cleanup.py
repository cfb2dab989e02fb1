"""Cleanup: constants become initializers, names unique; unused and duplicate nodes are removed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from ndld_flow.graph.sanitize.edits import QUANTIZATION, RANDOM, Edits
from ndld_flow.models.element_types import subgraphs_of
from ndld_flow.models.lazy_tensors import SparseInitializer, byte_pieces
from ndld_flow.models.nodes import constant_of, free_name, is_used, precision_of, remove_node, values_of
from ndld_flow.models.tensor_statistics import digest_of

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
