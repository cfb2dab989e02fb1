"""Shapes of tensors, and values of shape tensors.

Shape inference does not trust the exported shapes of inner tensors. Shape tensors are evaluated in part: each element
is a number, the name of a dimension, or unknown. Shape(x) of a static x is a constant, as is everything computed from
it. Of a dynamic x some elements are known, which is enough to give most Reshapes a constant shape of 0 and -1, or to
decide an If on a rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Dim, Edits, dims_of, int_attribute, ints_attribute
from ndld_flow.models.element_types import is_op
from ndld_flow.models.foreign_shapes import can_infer
from ndld_flow.models.input_shapes import merged_shape
from ndld_flow.models.shape_inference import drop_invented_names
from ndld_flow.models.shape_inference import infer_shapes as infer


class Interface:
    """The declared inputs and outputs, and exported inner shapes that inference may not find again."""

    def __init__(self, edits: Edits) -> None:
        graph = edits.model.graph
        self._declared = {v.name: (v.type, v.shape) for v in (*graph.inputs, *graph.outputs)}
        self._inner: dict[ir.Value, ir.Shape | None] = {}

    def forget_inner_shapes(self, edits: Edits) -> None:
        """Clear inner shapes: exporters sometimes write wrong ones, and folding with them gives wrong models."""
        for graph in edits.model.graphs():
            for node in graph:
                if can_infer(node):
                    for value in node.outputs:
                        self._inner[value] = value.shape
                        value.shape = None

    def recall_ranks(self, edits: Edits) -> bool:
        """Use the exported rank (not the dimensions) of values for which inference finds no rank.

        Exporters omit shapes of If outputs; then their readers' outputs determine the rank, if they agree.
        """
        recalled = False
        for graph in edits.model.graphs():
            for value in (value for node in graph for value in node.outputs):
                if value.shape is None and (rank := self._exported_rank(edits, value)) is not None:
                    value.shape = ir.Shape([None] * rank)
                    recalled = True
        return recalled

    def _exported_rank(self, edits: Edits, value: ir.Value) -> int | None:
        exported = self._inner.get(value)
        if exported is not None:
            return len(exported)
        ranks = {self._rank_from_reader(edits, use.node) for use in value.uses() if use.idx == 0} - {None}
        return ranks.pop() if len(ranks) == 1 else None

    def _rank_from_reader(self, edits: Edits, reader: ir.Node) -> int | None:
        """Return the rank of a node's first input, given the known or exported rank of its output."""
        if not is_op(reader, "Identity", "Unsqueeze"):
            return None
        output = reader.outputs[0]
        shape = output.shape if output.shape is not None else self._inner.get(output)
        if shape is None or reader.op_type == "Identity":
            return None if shape is None else len(shape)
        axes = edits.constant(reader.inputs[1]) if len(reader.inputs) > 1 else None
        return None if axes is None else len(shape) - axes.size

    def restore(self, edits: Edits, reshaped: bool) -> None:
        """Restore the declared inputs and outputs exactly, unless inputs were given other shapes."""
        graph = edits.model.graph
        for graph_ in edits.model.graphs():
            for node in graph_:
                for value in node.outputs:
                    drop_invented_names(value)
                    if value.shape is None and not reshaped:
                        value.shape = self._inner.get(value)
        for value in graph.outputs if reshaped else (*graph.inputs, *graph.outputs):
            type_, shape = self._declared[value.name]
            value.type = type_ if type_ is not None else value.type
            # The checker requires a shape on every output, even if the exporter wrote none.
            value.shape = merged_shape(value.shape, shape) if reshaped or shape is None else shape


def infer_shapes(edits: Edits, interface: Interface) -> None:
    """Write shapes and dtypes to every value for which they can be inferred."""
    infer(edits.model)
    if interface.recall_ranks(edits):
        infer(edits.model)


_MAX_ELEMENTS = 64
_WHOLE = frozenset((ir.DataType.INT64, ir.DataType.INT32))
_HOLDS = frozenset((*_WHOLE, ir.DataType.BOOL))


@dataclass(frozen=True)
class Known:
    """Known elements of a scalar or a 1-D tensor; booleans are 0 and 1."""

    elements: tuple[Dim, ...]
    scalar: bool = False

    @property
    def complete(self) -> bool:
        return all(isinstance(e, int) for e in self.elements)


class ShapeValues:
    """Known values of shape tensors; each is computed once."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._known: dict[ir.Value, Known | None] = {}

    def of(self, value: ir.Value | None) -> Known | None:
        """Return what is known of a value from constants and visited nodes."""
        if value is None:
            return None
        if value not in self._known:
            self._known[value] = self._constant(value)
        return self._known[value]

    def visit(self, node: ir.Node) -> Known | None:
        """Evaluate the first output of a node. Nodes must be visited in order."""
        rule = _RULES.get(node.op_type)
        known = rule(self, node) if rule is not None and not node.domain and node.inputs else None
        if known is not None and len(known.elements) > _MAX_ELEMENTS:
            known = None
        if node.outputs and known is not None:
            self._known[node.outputs[0]] = known
        return known

    def opset(self, node: ir.Node) -> int:
        return self._edits.opset(node.graph if isinstance(node.graph, ir.Graph) else None)

    def _constant(self, value: ir.Value) -> Known | None:
        tensor = self._edits.constant(value)
        if tensor is None or tensor.dtype not in _HOLDS or len(tensor.shape) > 1 or tensor.size > _MAX_ELEMENTS:
            return None
        array = tensor.numpy()
        return Known(tuple(int(e) for e in array.reshape(-1)), scalar=array.ndim == 0)


def visited_shape_values(edits: Edits) -> ShapeValues:
    """Return the values that are known after visiting every node."""
    values = ShapeValues(edits)
    for graph in edits.graphs():
        for node in graph:
            values.visit(node)
    return values


def fold_shape_values(edits: Edits) -> None:
    """Replace every completely known shape tensor by a constant."""
    values = ShapeValues(edits)
    for graph in edits.graphs():
        for node in tuple(graph):
            if not node.inputs:
                continue
            known = values.visit(node)
            output = node.outputs[0] if node.outputs else None
            if known is None or output is None or not known.complete or output.dtype not in _HOLDS:
                continue
            if output.is_graph_output() or not output.uses():
                continue
            array = np.array(known.elements, dtype=output.dtype.numpy())
            edits.set_constant(output, ir.Tensor(array.reshape(()) if known.scalar else array))
            edits.done["shape computations folded"] += 1


def _shape(values: ShapeValues, node: ir.Node) -> Known | None:
    dims = dims_of(node.inputs[0])
    start, end = int_attribute(node, "start", 0), int_attribute(node, "end", 2**31)
    if dims is None or start is None or end is None:
        return None
    return Known(dims[start:end])


def _size(values: ShapeValues, node: ir.Node) -> Known | None:
    dims = dims_of(node.inputs[0])
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    return Known((math.prod(d for d in dims if isinstance(d, int)),), scalar=True)


def _gather(values: ShapeValues, node: ir.Node) -> Known | None:
    data, index = values.of(node.inputs[0]), values.of(node.inputs[1])
    if data is None or data.scalar or index is None or int_attribute(node, "axis", 0) != 0:
        return None
    picked: list[Dim] = []
    for i in index.elements:
        if not isinstance(i, int) or not -len(data.elements) <= i < len(data.elements):
            return None
        picked.append(data.elements[i])
    return Known(tuple(picked), index.scalar)


def _slice(values: ShapeValues, node: ir.Node) -> Known | None:
    data = values.of(node.inputs[0])
    if data is None or data.scalar:
        return None
    if values.opset(node) < 10:
        given = [ints_attribute(node, "starts"), ints_attribute(node, "ends")]
    else:
        given = [_whole(values.of(value)) for value in node.inputs[1:3]]
    steps = _whole(values.of(node.inputs[4])) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
    if any(g is None or len(g) != 1 for g in (*given, steps)):
        return None
    starts, ends = given
    assert starts is not None and ends is not None and steps is not None
    if steps[0] <= 0 or len(given) != 2:
        return None
    return Known(data.elements[starts[0] : ends[0] : steps[0]])


def _whole(known: Known | None) -> tuple[int, ...] | None:
    if known is None or not known.complete:
        return None
    return tuple(e for e in known.elements if isinstance(e, int))


def _concat(values: ShapeValues, node: ir.Node) -> Known | None:
    parts = [values.of(value) for value in node.inputs]
    if any(part is None or part.scalar for part in parts):
        # A part without known elements counts as unknown elements if its length is known.
        parts = [part or _of_known_length(value) for part, value in zip(parts, node.inputs, strict=True)]
    if any(part is None or part.scalar for part in parts):
        return None
    return Known(tuple(e for part in parts if part is not None for e in part.elements))


def _of_known_length(value: ir.Value | None) -> Known | None:
    dims = dims_of(value)
    if dims is None or len(dims) != 1 or not isinstance(dims[0], int) or dims[0] > _MAX_ELEMENTS:
        return None
    return Known((None,) * dims[0])


def _cast(values: ShapeValues, node: ir.Node) -> Known | None:
    known = values.of(node.inputs[0])
    target = int_attribute(node, "to", 0)
    if known is None or target not in {d.value for d in _WHOLE}:
        return None
    fits = all(not isinstance(e, int) or -(2**31) <= e < 2**31 for e in known.elements)
    return known if fits or target == ir.DataType.INT64.value else None


def _unsqueeze(values: ShapeValues, node: ir.Node) -> Known | None:
    known = values.of(node.inputs[0])
    dims = dims_of(node.outputs[0])
    if known is None or not known.scalar or dims is None or len(dims) != 1:
        return None
    return Known(known.elements)


def _squeeze(values: ShapeValues, node: ir.Node) -> Known | None:
    known = values.of(node.inputs[0])
    if known is None or known.scalar or len(known.elements) != 1:
        return None
    return Known(known.elements, scalar=True)


def _reshape(values: ShapeValues, node: ir.Node) -> Known | None:
    known, target = values.of(node.inputs[0]), values.of(node.inputs[1])
    if known is None or target is None or len(target.elements) > 1:
        return None
    return Known(known.elements, scalar=not target.elements)


def _arithmetic(compute: Callable[[int, int], int], neutral: int, commutes: bool) -> Callable[..., Known | None]:
    """Return a rule for an elementwise operation; x op neutral is x even if x is only a name."""

    def element(a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and isinstance(b, int):
            return compute(a, b)
        if b == neutral:
            return a
        return b if commutes and a == neutral else None

    return partial(_elementwise, element=element)


def _compare(compute: Callable[[int, int], bool]) -> Callable[..., Known | None]:
    def element(a: Dim, b: Dim) -> Dim:
        return int(compute(a, b)) if isinstance(a, int) and isinstance(b, int) else None

    return partial(_elementwise, element=element)


def _elementwise(values: ShapeValues, node: ir.Node, element: Callable[[Dim, Dim], Dim]) -> Known | None:
    a, b = values.of(node.inputs[0]), values.of(node.inputs[1])
    if a is None or b is None:
        return None
    length = max(len(a.elements), len(b.elements))
    if not {len(a.elements), len(b.elements)} <= {1, length}:
        return None
    first = a.elements * (length if len(a.elements) == 1 else 1)
    second = b.elements * (length if len(b.elements) == 1 else 1)
    try:
        return Known(tuple(map(element, first, second)), a.scalar and b.scalar)
    except (ZeroDivisionError, OverflowError):
        return None


def _not(values: ShapeValues, node: ir.Node) -> Known | None:
    known = values.of(node.inputs[0])
    if known is None:
        return None
    return Known(tuple(1 - e if isinstance(e, int) else None for e in known.elements), known.scalar)


def _truncated(a: int, b: int) -> int:
    """Divide as ONNX does for integers, rounding towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_RULES: dict[str, Callable[[ShapeValues, ir.Node], Known | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Identity": lambda values, node: values.of(node.inputs[0]),
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Add": _arithmetic(lambda a, b: a + b, 0, commutes=True),
    "Sub": _arithmetic(lambda a, b: a - b, 0, commutes=False),
    "Mul": _arithmetic(lambda a, b: a * b, 1, commutes=True),
    "Div": _arithmetic(_truncated, 1, commutes=False),
    "Equal": _compare(lambda a, b: a == b),
    "Greater": _compare(lambda a, b: a > b),
    "Less": _compare(lambda a, b: a < b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "And": _compare(lambda a, b: bool(a and b)),
    "Or": _compare(lambda a, b: bool(a or b)),
    "Not": _not,
}
