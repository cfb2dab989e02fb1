"""Occurrences of a set of connected nodes in a graph, for repeated blocks and rewrite rules.

The search follows edges from one node, so that almost every candidate is determined by its neighbours. A `Likeness`
decides which nodes and tensors match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.graph.edit.node_groups import Neighbourhood
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import constant_tensor, read_values

Pairs = Sequence[tuple[ir.Value | None, ir.Value | None]]
"""Inputs of the pattern's node, each with the candidate's input."""
Array = npt.NDArray[Any]
_ALMOST_ZERO = 1e-8
"""Absolute tolerance of numbers near 0."""


class Likeness(Protocol):
    """Criteria of a match."""

    def alignments(self, node: ir.Node, candidate: ir.Node) -> Iterable[Pairs]:
        """Yield the possible assignments of a candidate's inputs to those of the pattern's node."""

    def may_be(self, value: ir.Value, candidate: ir.Value) -> bool:
        """Return whether a tensor can be one that the pattern reads from outside."""


@dataclass(frozen=True)
class Match:
    """Pattern's nodes and tensors -> the model's."""

    nodes: dict[ir.Node, ir.Node]
    values: dict[ir.Value, ir.Value]


@dataclass(frozen=True)
class _Step:
    """A node of the pattern, and the tensor that leads to it: one of its outputs or inputs."""

    node: ir.Node
    link: ir.Value | None
    makes_link: bool


class Pattern:
    """Connected nodes of one graph, to be found in others."""

    def __init__(self, nodes: Sequence[ir.Node], likeness: Likeness) -> None:
        self._members = frozenset(nodes)
        self._likeness = likeness
        self._steps = _search_order(nodes)
        self.root = nodes[-1]
        """The node from which matches are searched."""

    @property
    def is_connected(self) -> bool:
        """Return whether each node is reachable from the root; otherwise there are no matches."""
        return len(self._steps) == len(self._members)

    def matches(self, root: ir.Node, around: Neighbourhood) -> Iterator[Match]:
        """Yield the matches with the last node at `root`; all nodes of a match are in one graph."""
        if not self.is_connected:
            return
        binding = _Binding(self._members, self._likeness, root.graph)
        tries = [self._tries(0, [root])]
        marks = [0]
        while tries:
            binding.undo(marks[-1])
            attempt = next(tries[-1], None)
            if attempt is None:
                tries.pop()
                marks.pop()
            elif binding.bind(*attempt):
                if len(tries) < len(self._steps):
                    tries.append(self._tries(len(tries), self._candidates(len(tries), binding, around)))
                    marks.append(binding.size)
                elif binding.is_closed():
                    yield Match(dict(binding.nodes), dict(binding.values))

    def _candidates(self, level: int, binding: _Binding, around: Neighbourhood) -> list[ir.Node]:
        step = self._steps[level]
        assert step.link is not None
        value = binding.values[step.link]
        if step.makes_link:
            producer = value.producer()
            return [] if producer is None else [producer]
        readers = dict.fromkeys(around.readers(value))
        return [reader for reader in readers if reader.graph is binding.graph and reader not in binding.taken]

    def _tries(self, level: int, candidates: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node, Pairs]]:
        node = self._steps[level].node
        for candidate in candidates:
            for pairs in self._likeness.alignments(node, candidate):
                yield node, candidate, pairs


class _Binding:
    """State of a search, which can be undone."""

    def __init__(self, members: frozenset[ir.Node], likeness: Likeness, graph: object) -> None:
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.values: dict[ir.Value, ir.Value] = {}
        self.taken: set[ir.Node] = set()
        self.graph = graph
        self._members = members
        self._likeness = likeness
        self._trail: list[ir.Node | ir.Value] = []

    @property
    def size(self) -> int:
        return len(self._trail)

    def bind(self, node: ir.Node, candidate: ir.Node, pairs: Pairs) -> bool:
        """Try to bind a candidate to a node. After a failure `undo` removes the bindings that were made before it."""
        if candidate in self.taken or len(node.outputs) > len(candidate.outputs):
            return False
        self.nodes[node] = candidate
        self.taken.add(candidate)
        self._trail.append(node)
        return all(map(self._bind_value, node.outputs, candidate.outputs)) and all(
            self._bind_input(value, other) for value, other in pairs
        )

    def undo(self, size: int) -> None:
        """Undo all bindings since there were this many."""
        while len(self._trail) > size:
            last = self._trail.pop()
            if isinstance(last, ir.Node):
                self.taken.remove(self.nodes.pop(last))
            else:
                del self.values[last]

    def is_closed(self) -> bool:
        """Return whether all tensors that the pattern reads from outside are produced outside the match."""
        return not any(
            value.producer() not in self._members and other.producer() in self.taken
            for value, other in self.values.items()
        )

    def _bind_input(self, value: ir.Value | None, other: ir.Value | None) -> bool:
        if value is None or other is None:
            return value is other
        if value in self.values:
            return self.values[value] is other
        if value.producer() in self._members:
            producer = other.producer()
            fits = producer is not None and producer.graph is self.graph and value.index() == other.index()
            return fits and self._bind_value(value, other)
        return self._likeness.may_be(value, other) and self._bind_value(value, other)

    def _bind_value(self, value: ir.Value, other: ir.Value) -> bool:
        if value in self.values:
            return self.values[value] is other
        self.values[value] = other
        self._trail.append(value)
        return True


def _search_order(nodes: Sequence[ir.Node]) -> list[_Step]:
    """Return the search order from the last node: first producers of known tensors, which are unique, then readers."""
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in nodes:
        for value in read_values(node):
            readers.setdefault(value, []).append(node)
    members, placed = set(nodes), {nodes[-1]}
    steps, known = [_Step(nodes[-1], None, False)], _values_at(nodes[-1])
    while (step := _next_step(known, readers, members, members - placed)) is not None:
        steps.append(step)
        placed.add(step.node)
        known |= _values_at(step.node)
    return steps


def _next_step(
    known: dict[ir.Value, None], readers: dict[ir.Value, list[ir.Node]], members: set[ir.Node], left: set[ir.Node]
) -> _Step | None:
    for value in known:
        producer = value.producer()
        if producer in left:
            assert producer is not None
            return _Step(producer, value, True)
    inside = [value for value in known if value.producer() in members]
    outside = [value for value in known if value.producer() not in members and constant_tensor(value) is None]
    for value in (*inside, *outside):
        for reader in readers.get(value, ()):
            if reader in left:
                return _Step(reader, value, False)
    return None


def _values_at(node: ir.Node) -> dict[ir.Value, None]:
    return dict.fromkeys((*node.outputs, *read_values(node)))


def is_close(wanted: Array, tensor: ir.TensorProtocol, tolerance: float) -> bool:
    """Return whether a constant has these numbers, within a relative tolerance or within the precision of its type.

    A single number matches a constant of one element and any rank. Tensors of another size are not read.
    """
    if tensor.size != wanted.size or isinstance(tensor, SparseInitializer) or tensor.dtype == ir.DataType.STRING:
        return False
    if wanted.ndim and tuple(tensor.shape.numpy()) != wanted.shape:
        return False
    array = tensor.numpy().reshape(wanted.shape)
    exact, rounded = (each.astype(np.float64) for each in (wanted, wanted.astype(array.dtype)))
    values = array.astype(np.float64)
    close = np.isclose(values, exact, rtol=tolerance, atol=_ALMOST_ZERO if tolerance else 0.0, equal_nan=True)
    # an integer constant does not equal 0.5 only because 0.5 rounds to it
    return bool(np.all(close | ((values == rounded) & (array.dtype.kind not in "iub"))))


def is_numeric(wanted: JsonValue) -> bool:
    """Return whether a value is a number, or nested lists of numbers of equal lengths; None is accepted."""
    try:
        return wanted is None or np.asarray(wanted).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False


def has_shape(shape: ir.Shape | None, wanted: Sequence[int | str | None]) -> bool:
    """Return whether a shape has these dimensions; None matches any."""
    if shape is None or len(shape) != len(wanted):
        return False
    dims = (dim if isinstance(dim, int) else dim.value for dim in shape)
    return all(want is None or want == dim for want, dim in zip(wanted, dims, strict=True))


def same_value(first: ir.Attr | None, second: ir.Attr | None) -> bool:
    """Return whether two attributes are equal within the precision of fp32; None means that a node lacks it."""
    if first is None or second is None:
        return first is second
    if first.is_ref() or second.is_ref():
        return first.is_ref() and second.is_ref() and first.ref_attr_name == second.ref_attr_name
    if first.type == second.type == ir.AttributeType.TENSOR:
        return is_close(first.as_tensor().numpy(), second.as_tensor(), 0.0)
    numbers = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS)
    if first.type in numbers and second.type in numbers:
        a, b = np.asarray(first.value, np.float64), np.asarray(second.value, np.float64)
        return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=0))
    return first.type == second.type and bool(first.value == second.value)
