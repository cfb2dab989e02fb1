"""The operators of a model, and the weights that belong to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from ndld_flow.models.files import all_graphs, load_structure

_QUANTIZED = re.compile(
    "DequantizeLinear|QLinear.*|QGemm|QAttention|.*Integer.*|DynamicQuantize.*|MatMulNBits|GatherBlock.*"
)
"""Operators that read quantized weights."""


def weight_bytes_by_operator(path: Path) -> Mapping[str, int]:
    """Return the bytes of the weights that nodes of each operator read; a weight that several read counts once.

    Raises `ModelError` as `load_structure` does.
    """
    found: Counter[str] = Counter()
    for operator, tensor in _weights(path):
        found[operator] += tensor.nbytes
    return found


def quantized_share(path: Path) -> float:
    """Return the share of the weights' elements that are of 8 bits or fewer, and read by operators that expect that.

    Raises `ModelError` as above.
    """
    sizes = [
        (tensor.size, bool(_QUANTIZED.fullmatch(name)) and tensor.dtype.itemsize <= 1)
        for name, tensor in _weights(path)
    ]
    return sum(count for count, is_quantized in sizes if is_quantized) / max(sum(count for count, _ in sizes), 1)


def _weights(path: Path) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield each weight once, initializers and Constants, with the operator that reads it."""
    seen: set[int] = set()
    for graph in all_graphs(load_structure(path)):
        for node in graph:
            for value in node.inputs:
                tensor = None if value is None or id(value) in seen else ir.convenience.get_const_tensor(value)
                if tensor is not None:
                    seen.add(id(value))
                    yield node.op_type, tensor


def operators_of(path: Path) -> frozenset[str]:
    """Return the operators of a model, those in bodies and functions too. Raises `ModelError` as above."""
    return frozenset(node.op_type for graph in all_graphs(load_structure(path)) for node in graph)


def has_grouped_convolutions(path: Path) -> bool:
    """Return whether a model has convolutions in groups, such as depthwise ones. Raises `ModelError` as above."""
    nodes = (node for graph in all_graphs(load_structure(path)) for node in graph)
    return any(node.op_type == "Conv" and node.attributes.get_int("group", 1) > 1 for node in nodes)
