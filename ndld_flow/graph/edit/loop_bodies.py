"""The computation of a Loop's body in each iteration: its states, counters, reads of a sequence, masks and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Array, Edits, dims_of, int_attribute, ints_attribute, producer_of_type
from ndld_flow.graph.sanitize.shapes import visited_shape_values

Origin = int | str | tuple[ir.Value, int]
"""A size, the name of one, or a tensor and an axis whose size has no name."""


class Sizes:
    """Sizes of dimensions, and the numbers in shape tensors, of a model whose shapes are inferred."""

    def __init__(self, edits: Edits) -> None:
        self._numbers = visited_shape_values(edits)
        # Set the shapes of tensors of equal numbers, which inference does not find before opset 13.
        for node in (node for graph in edits.graphs() for node in graph):
            if node.op_type not in ("Expand", "ConstantOfShape"):
                continue
            dims = () if node.op_type == "ConstantOfShape" else dims_of(node.inputs[0])
            known = self._numbers.of(node.inputs[-1])
            if known is None or None in known.elements or dims is None:
                continue
            if set(dims) <= {1} and len(dims) <= len(known.elements):
                node.outputs[0].shape = ir.Shape(known.elements)

    def of(self, value: ir.Value, axis: int) -> Origin:
        """Return the size of a dimension, or its name, at worst itself."""
        dims = dims_of(value)
        dim = None if dims is None else dims[axis]
        return (value, axis) if dim is None else dim

    def number(self, value: ir.Value) -> int | str | None:
        """Return a scalar, or the name of the size that it is."""
        known = self._numbers.of(value)
        return known.elements[0] if known is not None and len(known.elements) == 1 else None


@contextmanager
def named_inputs(model: ir.Model) -> Iterator[None]:
    """Name the dynamic dimensions of inputs that have no name in the context, so that inference distinguishes them."""
    kept = [(value, value.shape) for value in model.graph.inputs]
    for value, shape in kept:
        if shape is not None:
            named = [isinstance(dim, int) or dim.value for dim in shape]
            value.shape = ir.Shape([dim if named[i] else f"{value.name}_{i}" for i, dim in enumerate(shape)])
    try:
        yield
    finally:
        for value, shape in kept:
            value.shape = shape


def rank_of(value: ir.Value | None) -> int | None:
    """Return the number of dimensions, if it is known."""
    return None if value is None or value.shape is None else len(value.shape)


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
    sizes: Sizes = field(init=False)
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
        self.sizes = Sizes(self.edits)
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
        axis, index, count = int_attribute(node, "axis", 0), list(node.outputs).index(value), len(node.outputs)
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
        return [(axis, sum(lengths[:index]), sum(lengths[: index + 1]))]

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
            return self._whole(self.initial(state)) if self._step(self.leaving(state), value) == 1 else None
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
        number = self.sizes.number(bound) if fixed else None
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
