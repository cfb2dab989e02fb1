"""Integer inputs that only index tables of known size, such as the token numbers of a text model.

An index beyond its table ends the run, and zeros read a single row, so random values are drawn from all rows. An input
with any use whose limits are unknown is left out: a shifted index, a size, a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import onnx
from onnx import TensorProto

_INDEX_TYPES = (TensorProto.INT32, TensorProto.INT64)
_PASSING = frozenset(
    ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice", "Gather", "Tile")
)
"""Operators whose result has the values of their first input."""
_HARMLESS = frozenset(
    ("Shape", "Size", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "ArgMax", "ArgMin")
)
"""Operators that accept any value."""
_TABLES: Mapping[tuple[str, str], Mapping[int, int]] = {
    ("", "Gather"): {1: 0},
    ("com.microsoft", "GatherBlockQuantized"): {1: 0},
    ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
}
"""Operator -> position of the indices -> position of their table."""
_CONVERSIONS = ("DequantizeLinear", "QuantizeLinear", "Cast", "CastLike", "Identity")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
"""Operators that dequantize a table with its scales and offsets."""
_UNLIMITED, _UNKNOWN = -1, 0
"""Limits of a use that accepts any value, and of one that may not."""


def indexed_rows(graph: onnx.GraphProto) -> dict[str, int]:
    """Return input -> rows of the smallest table that it indexes, for inputs without any other use."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {
        value.name: value.name
        for value in graph.input
        if value.name not in weights and value.type.tensor_type.elem_type in _INDEX_TYPES
    }
    if not inputs:
        return {}
    origins, tables = _follow(graph, inputs), _table_dims(graph)
    limits: dict[str, set[int]] = defaultdict(set)
    for node in graph.node:
        for name, limit in _uses(node, origins, tables):
            limits[name].add(limit)
    rows = {name: found - {_UNLIMITED} for name, found in limits.items() if _UNKNOWN not in found}
    return {name: min(found) for name, found in rows.items() if found}


def _follow(graph: onnx.GraphProto, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return tensor -> input whose values it has; nodes may be in any order."""
    origins, grows = dict(inputs), True
    while grows:
        before = len(origins)
        for node in graph.node:
            if node.op_type in _PASSING and not _domain(node) and node.input and node.input[0] in origins:
                origins.setdefault(node.output[0], origins[node.input[0]])
        grows = len(origins) > before
    return origins


def _table_dims(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return tensor -> dimensions of weights, and of tensors computed from weights as dequantization does."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            dims[node.output[0]] = next((tuple(each.t.dims) for each in node.attribute if each.name == "value"), ())
        elif node.op_type in _CONVERSIONS and node.input[0] in dims:
            dims[node.output[0]] = dims[node.input[0]]
        elif node.op_type in _ARITHMETIC and not _domain(node) and all(name in dims for name in node.input):
            with suppress(ValueError):  # of shapes that do not fit, which another check reports
                dims[node.output[0]] = np.broadcast_shapes(*(dims[name] for name in node.input))
    return dims


def _uses(
    node: onnx.NodeProto, origins: Mapping[str, str], tables: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, int]]:
    """Yield each input whose values a node uses, with the number of values that the node accepts."""
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            names = {name for inner in body.node for name in inner.input} | {value.name for value in body.output}
            yield from ((origins[name], _UNKNOWN) for name in names & origins.keys())
            for inner in body.node:
                yield from ((name, _UNKNOWN) for name, _ in _uses(inner, origins, tables))
    for place, name in enumerate(node.input):
        if name in origins:
            yield origins[name], _accepted(node, place, tables)


def _accepted(node: onnx.NodeProto, place: int, tables: Mapping[str, tuple[int, ...]]) -> int:
    table = _TABLES.get((_domain(node), node.op_type), {}).get(place)
    if table is not None:
        axis = next((each.i for each in node.attribute if each.name in ("axis", "gather_axis")), 0)
        dims = tables.get(node.input[table], ()) if table < len(node.input) else ()
        return dims[axis] if -len(dims) <= axis < len(dims) else _UNKNOWN
    is_harmless = node.op_type in _HARMLESS or (node.op_type in _PASSING and place == 0)
    return _UNLIMITED if is_harmless and not _domain(node) else _UNKNOWN


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain
