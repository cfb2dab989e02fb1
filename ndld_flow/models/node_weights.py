"""The weights of nodes: evidence for matching layers, and the bytes and the share of quantized ones by operator.

Names do not identify a node: exporters number nodes, and one additional layer shifts all later numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.files import all_graphs, load_model, load_structure
from ndld_flow.models.nodes import node_label
from ndld_flow.models.tensor_statistics import sample_digest
from ndld_flow.records.profile import Layer, LayerWeight

_WINDOW = ("kernel_shape", "strides", "dilations", "group")
_DIGITS = 16
"""64 bits of a digest: no two of a model's weights are the same by chance."""
_MOST_WEIGHTS = 32
"""Limit for one layer: a fused subgraph may have thousands, and a few identify it."""


_READS_SHAPE_ONLY = ("Shape", "Size")


def with_producers(nodes: Iterable[ir.Node], is_needed: Callable[[ir.Value, ir.Node], bool]) -> set[ir.Node]:
    """Return the nodes of a layer with those before them that belong to it: `is_needed` gets a tensor and its producer.

    A runtime computes shapes when it optimizes a model: the producer of the tensor is then no part of the layer.
    """
    found: set[ir.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        for value in node.inputs if node.op_type not in _READS_SHAPE_ONLY else ():
            producer = None if value is None else value.producer()
            if value is not None and producer is not None and is_needed(value, producer):
                waiting.append(producer)
    return found


@dataclass(frozen=True)
class Evidence:
    """The weights and the window of the nodes of one layer."""

    weights: tuple[LayerWeight, ...] = ()
    attributes: tuple[tuple[str, tuple[int, ...]], ...] = ()


def evidence_of(origins: Iterable[ir.Node]) -> Evidence:
    """Return the constants of these nodes, and the window of the first that has one."""
    values = {value.name: value for node in origins for value in node.inputs if value is not None}
    weights = (weight for value in values.values() if (weight := _weight(value)) is not None)
    windows = (window for node in origins if (window := _window(node)))
    kept = [weight for _, weight in zip(range(_MOST_WEIGHTS), weights, strict=False)]
    return Evidence(tuple(kept), next(windows, ()))


def add_evidence(layers: Sequence[Layer], model: Path) -> tuple[Layer, ...]:
    """Return the layers with the evidence of the nodes that they name; unchanged if the model cannot be read."""
    try:
        graph = load_model(model).graph
    except ModelError:
        return tuple(layers)
    nodes = {node_label(node): node for node in graph.all_nodes()}
    evidence = (evidence_of(nodes[name] for name in layer.onnx_nodes if name in nodes) for layer in layers)
    return tuple(
        layer.model_copy(
            update={"weights": found.weights or layer.weights, "attributes": found.attributes or layer.attributes}
        )
        for layer, found in zip(layers, evidence, strict=True)
    )


def _weight(value: ir.Value) -> LayerWeight | None:
    """Return the weight of a constant value; None for a computed one."""
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    shape = tuple(int(size) for size in tensor.shape.numpy())
    try:
        digest = sample_digest(tensor).hex()[:_DIGITS]
    except (OSError, ValueError):  # such as of a missing file
        digest = ""
    return LayerWeight(name=value.name or "", shape=shape, digest=digest)


def _window(node: ir.Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the integers of the attributes that describe a window; empty for a node without one."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for name in _WINDOW:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
            value = attribute.value
            found.append((name, tuple(value) if isinstance(value, list | tuple) else (int(value),)))
    return tuple(found)


_QUANTIZED = re.compile(
    "DequantizeLinear|QLinear.*|QGemm|QAttention|.*Integer.*|DynamicQuantize.*|MatMulNBits|GatherBlock.*"
)
"""Operators that read quantized weights."""


def weight_bytes_by_operator(path: Path) -> Mapping[str, int]:
    """Return the bytes of the weights that nodes of each operator read; a weight that several read counts once.

    Raises `ModelError` as `load_structure` does.
    """
    found: Counter[str] = Counter()
    for node, tensor in _weights(path):
        found[node.op_type] += tensor.nbytes
    return found


def quantized_share(path: Path) -> float:
    """Return the share of the weights' elements that are of 8 bits or fewer, and read by operators that expect that.

    Raises `ModelError` as above.
    """
    sizes = [(tensor.size, tensor.dtype.itemsize <= 1 and _reads_quantized(node)) for node, tensor in _weights(path)]
    return sum(count for count, is_quantized in sizes if is_quantized) / max(sum(count for count, _ in sizes), 1)


def _reads_quantized(node: ir.Node) -> bool:
    """Return whether a node expects quantized weights; that of an embedding table is dequantized after its lookup."""
    users = [user.op_type for output in node.outputs for user, _ in output.uses()] if node.op_type == "Gather" else []
    return _QUANTIZED.fullmatch(node.op_type) is not None or "DequantizeLinear" in users


def _weights(path: Path) -> Iterator[tuple[ir.Node, ir.TensorProtocol]]:
    """Yield each weight once, initializers and Constants, with the node that reads it."""
    seen: set[int] = set()
    for graph in all_graphs(load_structure(path)):
        for node in graph:
            for value in node.inputs:
                tensor = None if value is None or id(value) in seen else ir.convenience.get_const_tensor(value)
                if tensor is not None:
                    seen.add(id(value))
                    yield node, tensor


def operators_of(path: Path) -> frozenset[str]:
    """Return the operators of a model, those in bodies and functions too. Raises `ModelError` as above."""
    return frozenset(node.op_type for graph in all_graphs(load_structure(path)) for node in graph)


def has_grouped_convolutions(path: Path) -> bool:
    """Return whether a model has convolutions in groups, such as depthwise ones. Raises `ModelError` as above."""
    nodes = (node for graph in all_graphs(load_structure(path)) for node in graph)
    return any(node.op_type == "Conv" and node.attributes.get_int("group", 1) > 1 for node in nodes)
