"""The batch axis of each tensor, found by comparing the shapes inferred for two batch sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Dim, dims_of, is_standard
from ndld_flow.models.input_shapes import real_inputs
from ndld_flow.models.shape_inference import infer_shapes

_REGROUPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
Shapes = dict[ir.Value, tuple[Dim, ...] | None]


@dataclass(frozen=True)
class Batch:
    """The batch of the inputs."""

    axes: Mapping[str, int]
    """Input -> its batch axis."""
    size: int
    """The original size; 1 where it was dynamic already."""
    name: str

    @property
    def other(self) -> int:
        """Another size, which no other dimension is likely to have."""
        return self.size * 7919


def shapes_with(model: ir.Model, batch: Batch, size: int) -> Shapes:
    """Return the shape of every tensor for a batch size. Recorded shapes of intermediate tensors are ignored."""
    for value in real_inputs(model):
        axis = batch.axes.get(value.name or "")
        if axis is not None and value.shape is not None:
            value.shape = ir.Shape([size if place == axis else dim for place, dim in enumerate(value.shape)])
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs if is_standard(node) else ():
                value.shape = None
    infer_shapes(model)
    made = (value for graph in model.graphs() for node in graph for value in node.outputs)
    return {value: dims_of(value) for value in (*real_inputs(model), *made)}


@dataclass(frozen=True)
class BatchAxes:
    """Shapes for the original batch size and for another."""

    batch: Batch
    before: Shapes
    after: Shapes
    outer: dict[ir.Value, int] = field(default_factory=dict)
    """Result of `outer_counts`; 1 for other tensors."""

    def axis(self, value: ir.Value | None) -> int | None:
        """Return the only axis that grows with the batch; None when there is none, several, or an unknown shape."""
        if value is None:
            return None
        before, after = self.before.get(value), self.after.get(value)
        if before is None or after is None or len(before) != len(after):
            return None
        grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b and isinstance(a, int)]
        return grown[0] if len(grown) == 1 else None

    def lost(self, value: ir.Value) -> bool:
        """Return whether a shape that is known for the present batch is impossible for another."""
        before, after = self.before.get(value), self.after.get(value)
        return before is not None and (after is None or len(before) != len(after))

    def open_shape(self, value: ir.Value) -> ir.Shape | None:
        """Return the shape for any batch: the batch by name, its multiples unknown."""
        before, after = self.before.get(value), self.after.get(value)
        if before is None or after is None or len(before) != len(after):
            return None
        return ir.Shape([self._open(a, b) for a, b in zip(before, after, strict=True)])

    def _open(self, before: Dim, after: Dim) -> Dim:
        if before == after:
            return before
        return self.batch.name if (before, after) == (self.batch.size, self.batch.other) else None


def outer_counts(found: BatchAxes, nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """Return the outer factor of each merged batch axis: 4 where a Reshape merged [4, batch] into one axis."""
    outer: dict[ir.Value, int] = {}
    for node in nodes:
        source = next((value for value in node.inputs if value is not None and found.axis(value) is not None), None)
        for value in node.outputs if source is not None else ():
            axis = found.axis(value)
            if axis is not None and source is not None:
                outer[value] = _outer(found, node, source, value, outer.get(source, 1))
    return outer


def _outer(found: BatchAxes, node: ir.Node, source: ir.Value, value: ir.Value, outer: int) -> int:
    if node.op_type not in _REGROUPING:
        return outer
    ahead, front = (_product((found.before[one] or ())[: found.axis(one)]) for one in (source, value))
    return ahead * outer // front if ahead and front and ahead * outer % front == 0 else 1


def axis_after_reshape(
    before: tuple[Dim, ...], axis: int, after: tuple[Dim, ...], size: int, outer: int = 1
) -> int | None:
    """Return the batch axis after a Reshape; None when it is unknown.

    A Reshape keeps the order of elements, so as many come before the batch as did: that many are in the axes ahead of
    it, or in the same axis outside it (`outer`). Of several places the one that is only the batch is meant, or the one
    that leaves the axes behind it as they were.
    """
    ahead = _product(before[:axis])
    if ahead is None or _product(after) is None:
        return axis if outer == 1 and before[:axis] == after[:axis] and axis < len(after) else None
    sizes = [int(dim or 0) for dim in after]
    fitting = [place for place in range(len(sizes)) if _fits(sizes, place, ahead * outer, size)]
    behind = len(before) - axis - 1
    alone = [place for place in fitting if sizes[place] == size]
    merged = [place for place in fitting if after[place + 1 :] == before[len(before) - behind :]]
    if axis in alone:
        return axis
    return next(iter((*alone, *merged, *reversed(fitting))), None)


def _fits(sizes: Sequence[int], place: int, ahead: int, size: int) -> bool:
    front = math.prod(sizes[:place])
    return bool(front) and ahead % front == 0 and sizes[place] % (ahead // front * size) == 0


def _product(dims: Sequence[Dim]) -> int | None:
    return math.prod(dim for dim in dims if isinstance(dim, int)) if all(isinstance(dim, int) for dim in dims) else None
