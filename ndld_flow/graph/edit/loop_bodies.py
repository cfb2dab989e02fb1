"""The computation of a Loop's body in each iteration: its states, counters, reads of a sequence, masks and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Array, Edits, int_attribute, ints_attribute, is_standard, producer_of_type

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


LONGEST = 2**31 - 1
"""A constant limit of iterations from which it limits nothing."""
_COUNTERS = frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE))


class UnlikeError(Exception):
    """Why a loop is not what it would have to be."""


@dataclass(frozen=True)
class Read:
    """The part of an outer tensor that iteration k reads: its k-th entry along an axis."""

    source: ir.Value
    axis: int


@dataclass(frozen=True)
class Masked:
    """A choice between two tensors by a mask, which is read from a sequence too."""

    mask: Read
    when: bool
    """The value of the mask that chooses `new`."""
    new: ir.Value
    """What the iteration computes."""
    old: ir.Value


_Chosen = tuple[Read, bool, ir.Value]
"""A mask, its value, and what that chooses."""


@dataclass
class LoopBody:
    """A Loop whose body is interpreted."""

    edits: Edits
    loop: ir.Node
    graph: ir.Graph = field(init=False)
    origins: DimensionOrigins = field(init=False)
    _states: dict[ir.Value, int] = field(init=False)

    def __post_init__(self) -> None:
        body = self.loop.attributes.get("body")
        if body is None or body.is_ref():
            raise UnlikeError("it has no body")
        self.graph = body.as_graph()
        states, inputs, outputs = len(self.states), len(self.graph.inputs), len(self.graph.outputs)
        if (
            len(self.loop.inputs) < 2
            or inputs != 2 + states
            or outputs != 1 + len(self.loop.outputs)
            or outputs < 1 + states
        ):
            raise UnlikeError("its body has other inputs or outputs than it")
        self.origins = DimensionOrigins(self.edits)
        self._states = {self.entering(state): state for state in self.states}

    @property
    def states(self) -> range:
        """Return the numbers of the states; a state's value enters as input `2 + number` of the loop and the body."""
        return range(len(self.loop.inputs) - 2)

    def entering(self, state: int) -> ir.Value:
        """Return a state's value at the start of an iteration."""
        return self.graph.inputs[2 + state]

    def leaving(self, state: int) -> ir.Value:
        """Return a state's value at the end of an iteration."""
        return self.settle(self.graph.outputs[1 + state])

    def initial(self, state: int) -> ir.Value:
        """Return a state's value before the loop."""
        value = self.loop.inputs[2 + state]
        if value is None:
            raise UnlikeError("a state has no initial value")
        return self.settle(value)

    def settle(self, value: ir.Value) -> ir.Value:
        """Return the tensor that a value equals: through Identity, and out of the loop if no iteration changes it."""
        while True:
            identity = producer_of_type(value, "Identity")
            if identity is not None and identity.inputs[0] is not None:
                value = identity.inputs[0]
                continue
            state = self.state_of(value)
            if state is None or self._without_identity(self.graph.outputs[1 + state]) is not value:
                return value
            outer = self.loop.inputs[2 + state]
            if outer is None:
                return value
            value = outer

    def state_of(self, value: ir.Value) -> int | None:
        """Return the number of the state whose entering value this is."""
        return self._states.get(value)

    def is_outer(self, value: ir.Value) -> bool:
        """Return whether a settled value is computed outside of the body."""
        return value.graph is not self.graph

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant, or of a part of one."""
        if value is None:
            return None
        value = self.settle(value)
        node = producer_of_type(value, "Split", "Slice", "Transpose")
        if node is None:
            return self.edits.array(value)
        whole = self.array(node.inputs[0])
        if whole is None:
            return None
        if node.op_type == "Transpose":
            return whole.transpose(ints_attribute(node, "perm")) if "perm" in node.attributes else whole.T
        part = self.part(node, value, whole.shape)
        return None if part is None else whole[part]

    def part(self, node: ir.Node, value: ir.Value, sizes: Sequence[int | None]) -> tuple[slice, ...] | None:
        """Return what Split or Slice takes of a tensor whose sizes are known where it is divided; None if unknown."""
        ranges = self._split_ranges(node, value, sizes) if node.op_type == "Split" else self._slice_ranges(node, sizes)
        taken = [slice(None)] * len(sizes)
        for axis, first, last in ranges or ():
            size = sizes[axis]
            if size is not None:
                taken[axis] = slice(*slice(first, last).indices(size)[:2])
            elif first != 0 or last < LONGEST:
                return None
        return None if ranges is None else tuple(taken)

    def _split_ranges(
        self, node: ir.Node, value: ir.Value, sizes: Sequence[int | None]
    ) -> list[tuple[int, int, int]] | None:
        """Return the axis of a Split, and where a part begins and ends."""
        axis, place, count = int_attribute(node, "axis", 0), list(node.outputs).index(value), len(node.outputs)
        if axis is None or not -len(sizes) <= axis < len(sizes):
            return None
        total = sizes[axis]
        given = self.array(node.inputs[1]) if len(node.inputs) > 1 else ints_attribute(node, "split")
        if given is not None:
            lengths = [int(length) for length in given]
        elif total is not None and total % count == 0 and len(node.inputs) == 1 and "split" not in node.attributes:
            lengths = [total // count] * count
        else:
            return None
        return [(axis, sum(lengths[:place]), sum(lengths[: place + 1]))]

    def _slice_ranges(self, node: ir.Node, sizes: Sequence[int | None]) -> list[tuple[int, int, int]] | None:
        """Return the axes of a Slice, and where it begins and ends on each; None if it takes steps."""
        given = [self.array(each) for each in node.inputs[1:]]
        if len(given) < 2 or any(each is None for each in given):
            return None
        starts, ends, axes, steps = (*([int(number) for number in each] for each in given if each is not None), [], [])[
            :4
        ]
        axes = axes or list(range(len(starts)))
        if any(step != 1 for step in steps) or not all(-len(sizes) <= axis < len(sizes) for axis in axes):
            return None
        return list(zip(axes, starts, ends, strict=True))

    def offset(self, value: ir.Value | None) -> int | None:
        """Return n if the value is k + n in iteration k."""
        value = None if value is None else self.uncast(value)
        if value is None or value is self.graph.inputs[0]:
            return None if value is None else 0
        state = self.state_of(value)
        if state is not None:
            return self._start(state) if self._step(self.leaving(state), value) == 1 else None
        node = producer_of_type(value, "Add", "Sub")
        if node is None:
            return None
        for counted, other in ((0, 1), (1, 0))[: 2 if node.op_type == "Add" else 1]:
            step = self._whole(node.inputs[other])
            start = None if step is None else self.offset(node.inputs[counted])
            if step is not None and start is not None:
                return start + (step if node.op_type == "Add" else -step)
        return None

    def read(self, value: ir.Value) -> Read | None:
        """Return what the k-th iteration reads of an outer tensor, if the value is that."""
        node = producer_of_type(self.settle(value), "Gather")
        if node is None or node.inputs[0] is None or rank_of(node.inputs[1]) != 0:
            return None
        source, axis = self.settle(node.inputs[0]), int_attribute(node, "axis", 0)
        rank = rank_of(source)
        if axis is None or rank is None or not self.is_outer(source) or self.offset(node.inputs[1]) != 0:
            return None
        return Read(source, axis % rank)

    def masked(self, value: ir.Value) -> Masked | None:
        """Return a choice by a mask: `Where`, or the sum of products by which tf2onnx writes one."""
        node = producer_of_type(self.settle(value), "Where", "Add")
        if node is None:
            return None
        first, second = self._branches(node) if node.op_type == "Where" else map(self._chosen, node.inputs)
        if first is None or second is None or first[0] != second[0] or first[1] == second[1]:
            return None
        unchanged = self.state_of(first[2]) is not None or self.is_outer(first[2])
        if unchanged or self.edits.constant(first[2]) is not None:
            first, second = second, first
        return Masked(first[0], first[1], first[2], second[2])

    def iterations_are(self, length: Origin) -> None:
        """Check that the loop runs as often as a dimension is long. Raises `UnlikeError`."""
        bounds = [] if self.loop.inputs[0] is None else [self.loop.inputs[0]]
        before = self.loop.inputs[1]
        for part in [] if before is None else self._conjuncts(before):
            compared = _less(part)
            if compared is None or self._whole(compared[0]) != 0:
                raise UnlikeError("whether it starts depends on what other nodes compute")
            self._check_bound(compared[1], length)
        for part in self._conjuncts(self.graph.outputs[0]):
            compared = _less(part)
            if part is self.graph.inputs[1]:
                continue
            if compared is None or self.offset(compared[0]) != 1:
                raise UnlikeError("when it ends depends on what it computes")
            bounds.append(compared[1])
        limits = [self._check_bound(bound, length) for bound in bounds]
        if not any(limits):
            raise UnlikeError("its number of iterations is not limited")

    def _check_bound(self, bound: ir.Value, length: Origin) -> bool:
        """Return whether a number of iterations is a length; False if it limits nothing. Raises `UnlikeError`."""
        bound = self.uncast(bound)
        fixed = self.is_outer(bound) or self.edits.constant(bound) is not None
        number = self.origins.number(bound) if fixed else None
        if isinstance(number, int) and number >= LONGEST:
            return False
        if number is None or number != length:
            raise UnlikeError("its number of iterations is not shown to be the length of the sequence that it reads")
        return True

    def _conjuncts(self, value: ir.Value) -> list[ir.Value]:
        """Return the conditions that all must hold, without those that always do."""
        waiting, parts = [value], dict[ir.Value, None]()
        while waiting:
            part = self.settle(waiting.pop())
            both = producer_of_type(part, "And")
            array = self.edits.array(part)
            if part in parts or (array is not None and array.all()):
                continue
            parts[part] = None
            waiting += [each for each in both.inputs if each is not None] if both is not None else []
        return [part for part in parts if producer_of_type(part, "And") is None]

    def uncast(self, value: ir.Value) -> ir.Value:
        """Return the settled value of which others are conversions that keep every count."""
        value = self.settle(value)
        while (cast := producer_of_type(value, "Cast")) is not None and cast.inputs[0] is not None:
            if int_attribute(cast, "to", 0) not in _COUNTERS:
                break
            value = self.settle(cast.inputs[0])
        return value

    def _start(self, state: int) -> int | None:
        return self._whole(self.initial(state))

    def _step(self, value: ir.Value, entering: ir.Value) -> int | None:
        """Return what an iteration adds to a state."""
        node = producer_of_type(self.uncast(value), "Add")
        for counted, other in ((0, 1), (1, 0)) if node is not None else ():
            source = node.inputs[counted]  # type: ignore[union-attr]
            if source is not None and self.uncast(source) is entering:
                return self._whole(node.inputs[other])  # type: ignore[union-attr]
        return None

    def _whole(self, value: ir.Value | None) -> int | None:
        """Return a constant scalar, if it is whole: with another constant, a counter would become a vector."""
        array = None if value is None else self.edits.array(self.uncast(value))
        if array is None or array.ndim or array.dtype.kind not in "iuf" or not float(array).is_integer():
            return None
        return int(array)

    def _without_identity(self, value: ir.Value) -> ir.Value:
        while (node := producer_of_type(value, "Identity")) is not None and node.inputs[0] is not None:
            value = node.inputs[0]
        return value

    def _truth(self, value: ir.Value | None) -> tuple[Read, bool] | None:
        """Return the mask that a condition is read from, and its value where the condition holds."""
        when = True
        while value is not None:
            value = self.settle(value)
            read = self.read(value)
            if read is not None:
                return (read, when) if read.source.dtype == ir.DataType.BOOL else None
            node = producer_of_type(value, "Not", "Cast")
            if node is None:
                return None
            when = when != (node.op_type == "Not")
            value = node.inputs[0]
        return None

    def _branches(self, where: ir.Node) -> tuple[_Chosen | None, _Chosen | None]:
        """Return what Where chooses where its condition holds, and where not."""
        truth, (_, first, second) = self._truth(where.inputs[0]), where.inputs
        if truth is None or first is None or second is None:
            return None, None
        return (*truth, self.settle(first)), (truth[0], not truth[1], self.settle(second))

    def _chosen(self, value: ir.Value | None) -> _Chosen | None:
        """Return mask, its value, and the other factor of a product with a mask."""
        node = producer_of_type(self.settle(value), "Mul") if value is not None else None
        for index in (0, 1) if node is not None else ():
            factor, other = node.inputs[index], node.inputs[1 - index]  # type: ignore[union-attr]
            truth = self._truth(factor) if producer_of_type(factor, "Cast") is not None else None
            if truth is not None and other is not None:
                return (*truth, self.settle(other))
        return None


def _less(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return a and b of the condition a < b."""
    node = producer_of_type(value, "Less", "Greater")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    first, second = node.inputs[0], node.inputs[1]
    return (first, second) if node.op_type == "Less" else (second, first)
