"""Where the sizes of tensors come from: two dimensions with one origin are equal for every input of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits, int_attribute, ints_attribute, is_standard

Origin = int | str | tuple[ir.Value, int]
"""A size, a name that the model's inputs declare for it, or a tensor and an axis that has it."""
_DEEPEST = 150
"""Most tensors on the way to an origin, which bounds recursion; a dimension further away is its own origin."""
_ACTIVATIONS = frozenset(("Identity", "Cast", "Not", "Neg", "Abs", "Sigmoid", "Tanh", "Relu", "Clip", "Dropout"))
_UNCHANGED = _ACTIVATIONS | {"CumSum", "ReverseSequence", "ScatterElements"}
"""Operators whose output has the shape of their first input."""
_BROADCAST = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Greater", "And", "Or", "Where"))
_EXACT = frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE))
"""Types that hold every size: FP32 those up to 2**24, and no sequence is longer."""
_RECURRENT = frozenset(("LSTM", "GRU", "RNN"))


class DimensionOrigins:
    """Origins of dimensions in a model whose shapes are inferred, and that does not change meanwhile."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._inputs = set(edits.model.graph.inputs)
        self._known: dict[tuple[ir.Value, int], Origin] = {}
        self._depth = 0

    def of(self, value: ir.Value, axis: int) -> Origin:
        """Return the origin of a dimension, at worst itself."""
        if value.shape is not None and isinstance(value.shape[axis], int):
            return int(value.shape[axis])  # type: ignore[arg-type]
        if value in self._inputs and value.shape is not None and (name := _name(value.shape[axis])):
            return name
        key = (value, axis)
        if key not in self._known:
            node = value.producer()
            found = None
            if node is not None and is_standard(node) and self._depth < _DEEPEST:
                self._depth += 1
                found = self._through(node, value, axis)
                self._depth -= 1
            self._known[key] = key if found is None else found
        return self._known[key]

    def number(self, value: ir.Value | None, index: int = 0) -> Origin | None:
        """Return the origin of an element of a vector, or of a scalar: a number, or the dimension that it holds."""
        if value is None or self._depth >= _DEEPEST:
            return None
        array = self._edits.array(value)
        if array is not None:
            return int(array.flat[index]) if index < array.size and float(array.flat[index]).is_integer() else None
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in _NUMBERS:
            return None
        self._depth += 1
        found = _NUMBERS[node.op_type](self, node, index)
        self._depth -= 1
        return found

    def _through(self, node: ir.Node, value: ir.Value, axis: int) -> Origin | None:
        """Return the origin of a dimension of a node's output through the node's inputs."""
        if node.op_type in _UNCHANGED:
            return self._input(node, 0, axis) if value is node.outputs[0] else None
        if node.op_type in _BROADCAST:
            return self._broadcast(node, value, axis)
        if node.op_type in _RECURRENT:
            source = {0: 0, 2: 1} if value is node.outputs[0] else {1: 1}
            return self._input(node, 0, source.get(axis)) if int_attribute(node, "layout", 0) == 0 else None
        rule = _SHAPES.get(node.op_type)
        return None if rule is None else rule(self, node, axis)

    def _input(self, node: ir.Node, index: int, axis: int | None) -> Origin | None:
        source = node.inputs[index] if index < len(node.inputs) else None
        rank = rank_of(source)
        if source is None or rank is None or axis is None or not 0 <= axis < rank:
            return None
        return self.of(source, axis)

    def _broadcast(self, node: ir.Node, value: ir.Value, axis: int) -> Origin | None:
        rank, found = rank_of(value), set()
        for source in node.inputs:
            own = rank_of(source)
            if source is None or own is None or rank is None:
                return None
            place = axis - (rank - own)
            found |= {self.of(source, place)} if place >= 0 else set()
        return found.pop() if len(found) == 1 or len(found := found - {1}) == 1 else None

    def _transpose(self, node: ir.Node, axis: int) -> Origin | None:
        rank, perm = rank_of(node.inputs[0]), ints_attribute(node, "perm")
        if perm is None and (rank is None or "perm" in node.attributes):
            return None
        return self._input(node, 0, perm[axis] if perm is not None else (rank or 0) - 1 - axis)

    def _unsqueeze(self, node: ir.Node, axis: int) -> Origin | None:
        axes, rank = self._axes(node), rank_of(node.outputs[0])
        if axes is None or rank is None:
            return None
        added = {each % rank for each in axes}
        return 1 if axis in added else self._input(node, 0, axis - sum(each < axis for each in added))

    def _squeeze(self, node: ir.Node, axis: int) -> Origin | None:
        axes, rank = self._axes(node), rank_of(node.inputs[0])
        if axes is None or rank is None:
            return None
        gone = {each % rank for each in axes}
        return self._input(node, 0, [each for each in range(rank) if each not in gone][axis])

    def _gather(self, node: ir.Node, axis: int) -> Origin | None:
        along, data, picked = int_attribute(node, "axis", 0), rank_of(node.inputs[0]), rank_of(node.inputs[1])
        if along is None or data is None or picked is None:
            return None
        along %= data
        if along <= axis < along + picked:
            return self._input(node, 1, axis - along)
        return self._input(node, 0, axis if axis < along else axis - picked + 1)

    def _expand(self, node: ir.Node, axis: int) -> Origin | None:
        rank, own = rank_of(node.outputs[0]), rank_of(node.inputs[0])
        if rank is None or own is None:
            return None
        place, length = axis - (rank - own), _length(node.inputs[1])
        kept = 1 if place < 0 else self._input(node, 0, place)
        asked = (
            None if length is None else 1 if axis < rank - length else self.number(node.inputs[1], axis - rank + length)
        )
        return asked if kept in (1, asked) else kept if asked == 1 else None

    def _filled(self, node: ir.Node, axis: int) -> Origin | None:
        return self.number(node.inputs[0], axis)

    def _range(self, node: ir.Node, axis: int) -> Origin | None:
        counts = (self.number(node.inputs[0]), self.number(node.inputs[2])) == (0, 1)
        return self.number(node.inputs[1]) if counts and axis == 0 else None

    def _reshape(self, node: ir.Node, axis: int) -> Origin | None:
        asked = self.number(node.inputs[1], axis)
        if asked == 0:
            return self._input(node, 0, axis) if int_attribute(node, "allowzero", 0) == 0 else 0
        return None if asked == -1 else asked

    def _matmul(self, node: ir.Node, axis: int) -> Origin | None:
        rank, other = rank_of(node.inputs[0]), rank_of(node.inputs[1])
        return self._input(node, 0, axis) if other == 2 and rank is not None and axis < rank - 1 else None

    def _beside_axis(self, node: ir.Node, axis: int) -> Origin | None:
        """Concat and Split keep all dimensions but one."""
        rank, along = rank_of(node.outputs[0]), int_attribute(node, "axis", 0)
        return None if rank is None or along is None or along % rank == axis else self._input(node, 0, axis)

    def _slice(self, node: ir.Node, axis: int) -> Origin | None:
        rank = rank_of(node.inputs[0])
        axes = self._edits.array(node.inputs[3]) if len(node.inputs) > 3 else None
        if axes is None or rank is None or axis in {int(each) % rank for each in axes.flat}:
            return None
        return self._input(node, 0, axis)

    def _axes(self, node: ir.Node) -> Sequence[int] | None:
        """Return the axes of Squeeze and Unsqueeze, an attribute before opset 13."""
        if len(node.inputs) > 1:
            array = self._edits.array(node.inputs[1])
            return None if array is None else [int(axis) for axis in array.flat]
        return ints_attribute(node, "axes")

    def _shape_number(self, node: ir.Node, index: int) -> Origin | None:
        rank, start = rank_of(node.inputs[0]), int_attribute(node, "start", 0)
        if rank is None or start is None:
            return None
        return self._input(node, 0, (start + rank if start < 0 else start) + index)

    def _same_number(self, node: ir.Node, index: int) -> Origin | None:
        if node.op_type == "Cast" and int_attribute(node, "to", 0) not in _EXACT:
            return None
        return self.number(node.inputs[0], index)

    def _joined_number(self, node: ir.Node, index: int) -> Origin | None:
        for source in node.inputs:
            length = _length(source)
            if length is None:
                return None
            if index < length:
                return self.number(source, index)
            index -= length
        return None

    def _sliced_number(self, node: ir.Node, index: int) -> Origin | None:
        length = _length(node.inputs[0])
        starts = self._edits.array(node.inputs[1]) if len(node.inputs) > 1 else None
        steps = self._edits.array(node.inputs[4]) if len(node.inputs) > 4 else None
        if starts is None or length is None or (len(node.inputs) > 4 and (steps is None or int(steps.flat[0]) != 1)):
            return None
        start = int(starts.flat[0])
        return self.number(node.inputs[0], max(start + length, 0) + index if start < 0 else start + index)

    def _picked_number(self, node: ir.Node, index: int) -> Origin | None:
        picked, length = self._edits.array(node.inputs[1]), _length(node.inputs[0])
        if picked is None or length is None or index >= picked.size:
            return None
        return self.number(node.inputs[0], int(picked.flat[index]) % length)


def _name(dim: int | ir.SymbolicDim) -> str | None:
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Return the number of dimensions, if it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def _length(value: ir.Value | None) -> int | None:
    """Return the length of a vector, if it is known; a scalar has none."""
    if value is None or value.shape is None or len(value.shape) != 1:
        return None
    return value.shape[0] if isinstance(value.shape[0], int) else None


_Rule = Callable[[DimensionOrigins, ir.Node, int], Origin | None]
_SHAPES: dict[str, _Rule] = {
    "Transpose": DimensionOrigins._transpose,
    "Unsqueeze": DimensionOrigins._unsqueeze,
    "Squeeze": DimensionOrigins._squeeze,
    "Gather": DimensionOrigins._gather,
    "Expand": DimensionOrigins._expand,
    "Range": DimensionOrigins._range,
    "ConstantOfShape": DimensionOrigins._filled,
    "Reshape": DimensionOrigins._reshape,
    "MatMul": DimensionOrigins._matmul,
    "Concat": DimensionOrigins._beside_axis,
    "Split": DimensionOrigins._beside_axis,
    "Slice": DimensionOrigins._slice,
}
_NUMBERS: dict[str, _Rule] = {
    "Shape": DimensionOrigins._shape_number,
    "Cast": DimensionOrigins._same_number,
    "Identity": DimensionOrigins._same_number,
    "Squeeze": DimensionOrigins._same_number,
    "Unsqueeze": DimensionOrigins._same_number,
    "Concat": DimensionOrigins._joined_number,
    "Slice": DimensionOrigins._sliced_number,
    "Gather": DimensionOrigins._picked_number,
}
