"""How much onnx's shape inference would hold of values that shapes are computed from.

Its data propagation keeps each element of a shape as a message. A chain of `Concat(a, a)`, which doubles what it holds,
takes all memory with a few hundred bytes of model.
"""

from __future__ import annotations

import math

import onnx

MOST_ELEMENTS = 100_000
"""In all values of a model together. Those of shapes are a few for each node."""
_SHAPE_ELEMENTS = 16
"""More dimensions than a shape has."""
_PROPAGATES = frozenset(("Add", "Cast", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
"""Operators that onnx propagates data through, and that make no more than they read; Concat makes the sum of it."""


def is_little(graph: onnx.GraphProto) -> bool:
    """Whether data propagation holds at most `MOST_ELEMENTS` more than the model itself."""
    lengths = {
        one.name: math.prod(one.dims) for one in graph.initializer if one.data_location != onnx.TensorProto.EXTERNAL
    }
    held = 0
    for node in graph.node:
        length = _length(node, lengths)
        if node.op_type == "Concat":
            held += length
        if held > MOST_ELEMENTS:
            return False
        lengths.update(dict.fromkeys(node.output, length))
        if not all(is_little(attribute.g) for attribute in node.attribute if attribute.HasField("g")):
            return False
    return True


def _length(node: onnx.NodeProto, lengths: dict[str, int]) -> int:
    """Elements that are known of a node's output; none where nothing is propagated."""
    if node.op_type == "Shape":
        return _SHAPE_ELEMENTS
    if node.op_type == "Constant":
        return max((math.prod(one.t.dims) for one in node.attribute if one.HasField("t")), default=1)
    read = [lengths.get(name, 0) for name in node.input]
    if node.op_type == "Concat":
        return sum(read)
    return max(read, default=0) if node.op_type in _PROPAGATES else 0
