"""Equal nodes and equal initializers are kept once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import onnx_ir as ir

from ndld_flow.backends.sanitizing.edits import QUANTIZATION, RANDOM, Edits
from ndld_flow.backends.sparse_tensors import SparseInitializer

# Builders look for one Q/DQ pair at each weight and each reader.
_NOT_SHARED = RANDOM | QUANTIZATION
_MAX_KEY_BYTES = 4096
"""Attribute tensors beyond this are not compared."""


def share_equal_nodes(edits: Edits) -> None:
    """Common subexpressions: f(x) ... f(x) -> one f(x)"""
    for graph in edits.graphs():
        seen: dict[Hashable, ir.Node] = {}
        for node in tuple(graph):
            key = _node_key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and all(map(edits.replace, node.outputs, first.outputs)):
                edits.remove(node)
                edits.done["equal nodes shared"] += 1


def _node_key(node: ir.Node) -> Hashable | None:
    """What two equal nodes have in common; None for nodes that must not be shared."""
    if node.op_type in _NOT_SHARED or node.domain not in ("", "ai.onnx"):
        return None
    if any(value.is_graph_output() for value in node.outputs):
        return None
    attributes = tuple(sorted(_attribute_keys(node), key=str))
    if None in attributes:
        return None
    used = tuple(bool(value.name) for value in node.outputs)
    return (node.op_type, tuple(id(value) for value in node.inputs), attributes, used)


def _attribute_keys(node: ir.Node) -> Iterator[Hashable | None]:
    for attribute in node.attributes.values():
        yield _attribute_key(attribute)


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

    Only those that another could equal are read, and none larger than the threshold.
    """
    for graph in edits.model.graphs():
        groups: dict[Hashable, list[ir.Value]] = {}
        for value in graph.initializers.values():
            if not value.is_graph_input() and not value.is_graph_output():
                key = _initializer_key(edits, value)
                if key is not None:
                    groups.setdefault(key, []).append(value)
        for group in groups.values():
            if len(group) > 1:
                _share_group(edits, graph, group)


def _initializer_key(edits: Edits, value: ir.Value) -> Hashable | None:
    tensor = value.const_value
    if tensor is None or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return None
    key = (tensor.dtype, tuple(tensor.shape.numpy()))
    if tensor.nbytes > edits.size_threshold:
        # The same bytes of the same file need no reading.
        return (*key, tensor.path, tensor.offset) if isinstance(tensor, ir.ExternalTensor) else None
    return key


def _share_group(edits: Edits, graph: ir.Graph, group: list[ir.Value]) -> None:
    seen: dict[bytes | tuple[str, int | None], ir.Value] = {}
    for value in group:
        tensor = value.const_value
        assert tensor is not None and value.name is not None
        large = tensor.nbytes > edits.size_threshold and isinstance(tensor, ir.ExternalTensor)
        content = (str(tensor.path), tensor.offset) if large else tensor.tobytes()  # type: ignore[attr-defined]
        first = seen.setdefault(content, value)
        if first is not value:
            edits.replace(value, first)
            del graph.initializers[value.name]
            edits.done["equal initializers shared"] += 1
