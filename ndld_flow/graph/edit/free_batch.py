"""Dynamic batch for a model that was exported for a fixed one.

The batch axis of each tensor is found by comparing the shapes inferred for two batch sizes. Nodes that fix the batch
are changed. A trial on the CPU then checks that a batch of three gives the results of its items alone.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label, prune_values, some_of
from ndld_flow.graph.edit.interface import pick
from ndld_flow.graph.sanitize.edits import Dim, dims_of, int_attribute
from ndld_flow.models.external_data import INLINE_LIMIT_BYTES, tensors_of
from ndld_flow.models.files import model_inputs, save_model
from ndld_flow.models.input_shapes import forget_computed_shapes, real_inputs
from ndld_flow.models.nodes import graph_of, own_subgraphs
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.samples.feeds import make_feeds

_REGROUPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
Shapes = dict[ir.Value, tuple[Dim, ...] | None]
_MOST_ROUNDS = 1000
"""Maximum number of times the shapes are inferred again after changes."""
_MEASURING = ("Shape", "Size")
"""Operators whose outputs contain the batch size as a number, not as an axis."""
_ITEMS = 3
"""Items of the batch in the trial."""
_TOLERANCE = {np.dtype(np.float16): 2e-2}
_USUAL_TOLERANCE = 1e-3
"""Relative to the largest value: kernels add in another order for another batch size."""
_UNSET: dict[str, Any] = {"shape": None, "min": None, "opt": None, "max": None}


@dataclass(frozen=True)
class Batch:
    """The batch of the inputs."""

    axes: Mapping[str, int]
    """Input -> its batch axis."""
    size: int
    """The original size; 1 if it was already dynamic."""
    name: str

    @property
    def other(self) -> int:
        """Return another size, which no other dimension is likely to have."""
        return self.size * 7919


def shapes_with(model: ir.Model, batch: Batch, size: int) -> Shapes:
    """Return the shape of every tensor for a batch size. Recorded shapes of intermediate tensors are ignored."""
    for value in real_inputs(model):
        axis = batch.axes.get(value.name or "")
        if axis is not None and value.shape is not None:
            value.shape = ir.Shape([size if index == axis else dim for index, dim in enumerate(value.shape)])
    forget_computed_shapes(model)
    infer_shapes(model)
    outputs = (value for graph in model.graphs() for node in graph for value in node.outputs)
    return {value: dims_of(value) for value in (*real_inputs(model), *outputs)}


@dataclass(frozen=True)
class BatchAxes:
    """Shapes for the original batch size and for another."""

    batch: Batch
    before: Shapes
    after: Shapes
    outer: dict[ir.Value, int] = field(default_factory=dict)
    """Result of `outer_counts`; 1 for other tensors."""

    def axis(self, value: ir.Value | None) -> int | None:
        """Return the only axis that grows with the batch; None if there is none, several, or an unknown shape."""
        if value is None:
            return None
        before, after = self.before.get(value), self.after.get(value)
        if before is None or after is None or len(before) != len(after):
            return None
        grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b and isinstance(a, int)]
        return grown[0] if len(grown) == 1 else None

    def lost(self, value: ir.Value) -> bool:
        """Return whether a shape that is known for the current batch size is impossible for another."""
        before, after = self.before.get(value), self.after.get(value)
        return before is not None and (after is None or len(before) != len(after))

    def open_shape(self, value: ir.Value) -> ir.Shape | None:
        """Return the shape for any batch: the batch by name, its multiples unknown."""
        before, after = self.before.get(value), self.after.get(value)
        if before is None or after is None or len(before) != len(after):
            return None
        sizes = (self.batch.size, self.batch.other)
        pairs = zip(before, after, strict=True)
        return ir.Shape([a if a == b else self.batch.name if (a, b) == sizes else None for a, b in pairs])


def outer_counts(axes: BatchAxes, nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """Return the outer factor of each merged batch axis: 4 where a Reshape merged [4, batch] into one axis."""
    outer: dict[ir.Value, int] = {}
    for node in nodes:
        source = next((value for value in node.inputs if value is not None and axes.axis(value) is not None), None)
        if source is None:
            continue
        for value in node.outputs:
            if axes.axis(value) is None:
                continue
            count = outer.get(source, 1)
            if node.op_type in _REGROUPING:
                ahead, front = (_product((axes.before[each] or ())[: axes.axis(each)]) for each in (source, value))
                count = ahead * count // front if ahead and front and ahead * count % front == 0 else 1
            outer[value] = count
    return outer


def axis_after_reshape(
    before: tuple[Dim, ...], axis: int, after: tuple[Dim, ...], size: int, outer: int = 1
) -> int | None:
    """Return the batch axis after a Reshape; None if it is unknown.

    A Reshape keeps the order of elements: the number of elements outside the batch stays the same, in the axes ahead of
    it and in the same axis (`outer`). Of several possible axes the result is the one that holds only the batch, or the
    one behind which the axes are unchanged.
    """
    ahead = _product(before[:axis])
    if ahead is None or _product(after) is None:
        return axis if outer == 1 and before[:axis] == after[:axis] and axis < len(after) else None
    sizes = [int(dim or 0) for dim in after]
    outside = ahead * outer
    fronts = [math.prod(sizes[:index]) for index in range(len(sizes))]
    fitting = [
        index
        for index, front in enumerate(fronts)
        if front and outside % front == 0 and sizes[index] % (outside // front * size) == 0
    ]
    behind = len(before) - axis - 1
    alone = [index for index in fitting if sizes[index] == size]
    merged = [index for index in fitting if after[index + 1 :] == before[len(before) - behind :]]
    if axis in alone:
        return axis
    return next(iter((*alone, *merged, *reversed(fitting))), None)


def _product(dims: Sequence[Dim]) -> int | None:
    return math.prod(dim for dim in dims if isinstance(dim, int)) if all(isinstance(dim, int) for dim in dims) else None


@dataclass
class Freed:
    """The result: the batch, and the changed nodes."""

    batch: Batch
    outputs: dict[str, int] = field(default_factory=dict)
    """Output -> its batch axis."""
    inner: dict[str, int] = field(default_factory=dict)
    """Tensor of the main graph -> its batch axis."""
    merged: str = ""
    """The first tensor whose items are no longer next to each other on one axis; empty if there is none."""
    changed: list[str] = field(default_factory=list)
    """Nodes that had a fixed batch."""


def free_batch(edited: EditedModel, inputs: Sequence[str], axes: Mapping[str, int], name: str) -> Freed:
    """Make the batch of inputs dynamic, and that of outputs that depend on them.

    Notes outputs that do not follow the batch, with the nodes where it ends. Raises `RequestError` naming nodes that
    cannot take another batch.
    """
    model = edited.model
    batch = _batch(model, inputs, axes, name)
    edits = OperationEdits(edited)
    _open_body_inputs(model)
    freed = Freed(batch)
    inside = {value: value.shape for value in real_inputs(model)}
    with known_shapes(model):
        shapes = _free(edits, batch, freed)
    _check(shapes, model)
    for value in (value for node in _nodes(model) for value in node.outputs):
        if shapes.before.get(value) != shapes.after.get(value) and value not in model.graph.outputs:
            value.shape = None  # runtimes rely on recorded shapes
    for value, shape in inside.items():
        value.shape = shape
        if (axis := batch.axes.get(value.name or "")) is not None and shape is not None:
            # a dimension that is already dynamic keeps its name
            named = [not isinstance(dim, int) and bool(dim.value) for dim in shape]
            value.shape = ir.Shape([name if i == axis and not named[i] else dim for i, dim in enumerate(shape)])
    freed.outputs.update(_declare_outputs(shapes, model))
    values = [value for node in model.graph for value in node.outputs if value.name]
    merged = dict.fromkeys(value for value in values if shapes.outer.get(value, 1) != 1)
    freed.merged = next((value.name or "" for value in merged if not _has_merged(value, merged)), "")
    kept_axes = {value.name or "": shapes.axis(value) for value in values if value not in merged}
    freed.inner.update({name: axis for name, axis in kept_axes.items() if axis is not None})
    _note_ends(edited, shapes, freed)
    return freed


def _has_merged(value: ir.Value, merged: Collection[ir.Value]) -> bool:
    """Return whether the node of a value reads one of these."""
    node = value.producer()
    return node is not None and any(read in merged for read in node.inputs if read is not None)


def _batch(model: ir.Model, patterns: Sequence[str], axes: Mapping[str, int], name: str) -> Batch:
    values = pick(real_inputs(model), (*patterns, *axes) if patterns else ("*", *axes), "input")
    sizes = {value.name or "": _size(value, axes.get(value.name or "", 0)) for value in values}
    first = next((size for size in sizes.values() if size is not None), None)
    if first is None:
        raise RequestError("no input has a dimension that could count the items of a batch")
    if patterns and (odd := [each for each, size in sizes.items() if size not in (first, 0)]):
        raise RequestError(f"the batch size is {first or 'dynamic'} in one input, but not in {some_of(odd)}")
    fixed = next((size for size in sizes.values() if size), 1)
    batch_axes = {each: axes.get(each, 0) for each, size in sizes.items() if size in (fixed, 0)}
    return Batch(batch_axes, fixed, name)


def _size(value: ir.Value, axis: int) -> int | None:
    """Return the size of a dimension: 0 if it is dynamic, None if there is none."""
    if value.shape is None or not 0 <= axis < len(value.shape):
        return None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else 0


def _open_body_inputs(model: ir.Model) -> None:
    """Remove the shapes that loops' bodies declare, which may be wrong for another batch."""
    for graph in model.graphs():
        for node in graph:
            for _, body in own_subgraphs(node):
                for value in body.inputs:
                    if value.shape is not None:
                        value.shape = ir.Shape([None] * len(value.shape))


def _free(edits: OperationEdits, batch: Batch, freed: Freed) -> BatchAxes:
    """Change nodes in the order of dependence, until none has a fixed batch."""
    model = edits.model
    before = shapes_with(model, batch, batch.size)
    for _ in range(_MOST_ROUNDS):
        axes = BatchAxes(batch, before, shapes_with(model, batch, batch.other))
        axes.outer.update(outer_counts(axes, _nodes(model)))
        changed = [node for node in _nodes(model) if node.op_type in _RULES and _RULES[node.op_type](edits, axes, node)]
        freed.changed += [label(node) for node in changed]
        if not changed:
            return axes
        before = shapes_with(model, batch, batch.size)
    raise AssertionError("a changed node has no fixed batch")


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for graph in model.graphs() for node in graph if not node.domain]


def _reshape(edits: OperationEdits, shapes: BatchAxes, node: ir.Node) -> bool:
    """Replace Reshape(x, [1, 64, -1]) by Reshape(x, [0, 64, -1])."""
    source, output = node.inputs[0], node.outputs[0]
    axis, target = shapes.axis(source), edits.array(node.inputs[1]) if len(node.inputs) > 1 else None
    if axis is None or source is None or target is None or int_attribute(node, "allowzero", 0) != 0:
        return False
    old, new = shapes.before[source], shapes.before.get(output)
    if old is None or new is None:
        return False
    new_axis = axis_after_reshape(old, axis, new, shapes.batch.size, shapes.outer.get(source, 1))
    if new_axis is None or target[new_axis] <= 0:
        return False
    numbers = [int(number) for number in target]
    if new_axis == axis and old[axis] == new[new_axis]:
        numbers[new_axis] = 0
    else:
        if -1 in numbers:
            other = new[numbers.index(-1)]
            if not isinstance(other, int):
                return False
            numbers[numbers.index(-1)] = other
        numbers[new_axis] = -1
    _put_target(edits, node, numbers)
    return True


def _expand(edits: OperationEdits, shapes: BatchAxes, node: ir.Node) -> bool:
    """Replace Expand(x, [4, 8, 8]) by Expand(x, [1, 8, 8]) where x has the batch of 4."""
    source = node.inputs[0]
    axis, target = shapes.axis(source), edits.array(node.inputs[1])
    dims = shapes.before.get(source) if source is not None else None
    if axis is None or target is None or dims is None:
        return False
    target_axis = axis + target.size - len(dims)
    if target_axis < 0 or target[target_axis] == 1:
        return False
    _put_target(edits, node, [1 if i == target_axis else int(number) for i, number in enumerate(target)])
    return True


def _concat(edits: OperationEdits, shapes: BatchAxes, node: ir.Node) -> bool:
    """Replace Concat(x, token) by Concat(x, Expand(token, [batch, 1, 1]))."""
    model = next((value for value in node.inputs if shapes.axis(value) is not None), None)
    axis = shapes.axis(model)
    along = int_attribute(node, "axis", 0)
    dims = shapes.before.get(model) if model is not None else None
    if model is None or axis is None or along is None or dims is None or along % len(dims) == axis:
        return False
    short = [index for index, value in enumerate(node.inputs) if _has_one_item(shapes, value, axis)]
    for index in short:
        _stretch(edits, node, index, axis, model, axis)
    return bool(short)


def _recurrent(edits: OperationEdits, shapes: BatchAxes, node: ir.Node) -> bool:
    """Replace LSTM(x, initial state) by LSTM(x, Expand(initial state, [1, batch, 1]))."""
    source = node.inputs[0]
    axis = shapes.axis(source)
    if axis is None or source is None:
        return False
    state_axis = 0 if int_attribute(node, "layout", 0) else 1
    states = [index for index in (5, 6) if index < len(node.inputs) and node.inputs[index] is not None]
    short = [index for index in states if _has_one_item(shapes, node.inputs[index], state_axis)]
    for index in short:
        _stretch(edits, node, index, state_axis, source, axis)
    return bool(short)


def _resize(edits: OperationEdits, shapes: BatchAxes, node: ir.Node) -> bool:
    """Replace Resize(x, sizes [1, 3, 8, 8]) by Resize(x, sizes [batch, 3, 8, 8])."""
    axis = shapes.axis(node.inputs[0])
    sizes = edits.array(node.inputs[3]) if len(node.inputs) > 3 else None
    if axis is None or sizes is None or "axes" in node.attributes or int(sizes[axis]) != shapes.batch.size:
        return False
    source = node.inputs[0]
    assert source is not None
    graph, wish = graph_of(node), node.name or "resize"
    parts = [
        edits.ints(graph, [int(number) for number in piece], f"{wish}_size")
        for piece in (sizes[:axis], sizes[axis + 1 :])
        if len(piece)
    ]
    parts.insert(1 if axis else 0, _count(edits, node, source, axis))
    old = node.inputs[3]
    node.replace_input_with(3, edits.put_for(node, "Concat", parts, {"axis": 0}, f"{wish}_sizes"))
    if old is not None:
        prune_values([old])
    return True


_RULES: dict[str, Callable[[OperationEdits, BatchAxes, ir.Node], bool]] = {
    "Concat": _concat,
    "Expand": _expand,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "Resize": _resize,
}


def _has_one_item(shapes: BatchAxes, value: ir.Value | None, axis: int) -> bool:
    """Return whether a tensor contains one item for any batch size."""
    if value is None or shapes.axis(value) is not None:
        return False
    dims = shapes.before.get(value, dims_of(value))
    return dims is not None and axis < len(dims) and dims[axis] == 1


def _stretch(edits: OperationEdits, node: ir.Node, index: int, own_axis: int, model: ir.Value, axis: int) -> None:
    """Repeat the single item of an input for each item of another tensor."""
    value = node.inputs[index]
    assert value is not None
    dims = dims_of(value)
    rank = len(dims) if dims is not None else own_axis + 1
    graph, wish = graph_of(node), f"{value.name}_batch"
    count = _count(edits, node, model, axis)
    parts = [edits.ints(graph, [1] * length, f"{wish}_ones") for length in (own_axis, rank - own_axis - 1) if length]
    parts.insert(1 if own_axis else 0, count)
    shape = edits.put_for(node, "Concat", parts, {"axis": 0}, f"{wish}_shape") if len(parts) > 1 else count
    node.replace_input_with(index, edits.put_for(node, "Expand", [value, shape], wish=wish))


def _count(edits: OperationEdits, node: ir.Node, model: ir.Value, axis: int) -> ir.Value:
    """Return the number of items of a tensor, as a vector of one element."""
    graph, wish = graph_of(node), f"{node.name or node.op_type}_batch"
    shape = edits.put_for(node, "Shape", [model], wish=f"{wish}_of")
    return edits.put_for(node, "Gather", [shape, edits.ints(graph, [axis], f"{wish}_axis")], {"axis": 0}, wish)


def _put_target(edits: OperationEdits, node: ir.Node, numbers: Sequence[int]) -> None:
    """Replace the shape that Reshape or Expand reads."""
    old = node.inputs[1]
    node.replace_input_with(1, edits.ints(graph_of(node), numbers, f"{node.name or node.op_type}_target"))
    if old is not None:
        prune_values([old])


def _check(shapes: BatchAxes, model: ir.Model) -> None:
    """Raise `RequestError` for the first nodes that shape inference rejects for another batch size."""
    refused = [
        node
        for node in _nodes(model)
        if any(shapes.lost(value) for value in node.outputs)
        and not any(value is not None and shapes.lost(value) for value in node.inputs)
    ]
    if refused:
        raise RequestError(
            f"the batch cannot be dynamic: {some_of([label(node) for node in refused])} accepts only a batch of "
            f"{shapes.batch.size}; change these nodes first, or name only some `inputs`"
        )


def _declare_outputs(shapes: BatchAxes, model: ir.Model) -> Iterator[tuple[str, int]]:
    for value in dict.fromkeys(model.graph.outputs):
        shape = shapes.open_shape(value)
        axis = shapes.axis(value)
        if shape is not None and axis is not None:
            value.shape = shape
            yield value.name or "", axis
        elif shape is None and value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))


def _note_ends(edited: EditedModel, shapes: BatchAxes, freed: Freed) -> None:
    stuck = [value.name or "" for value in edited.model.graph.outputs if value.name not in freed.outputs]
    follows = {value for value, shape in shapes.before.items() if shape != shapes.after.get(value)}
    ends = [
        label(node)
        for node in _nodes(edited.model)
        if node.op_type not in _MEASURING and not follows.isdisjoint(node.inputs) and follows.isdisjoint(node.outputs)
    ]
    if stuck:
        where = f"; it ends at {some_of(ends)}" if ends else ""
        edited.note(f"outputs that do not follow the batch: {some_of(stuck)}{where}")
    if not freed.outputs:
        where = f": {some_of(ends)} removes it" if ends else ""
        raise RequestError(f"no output has the batch of {some_of(list(freed.batch.axes))}{where}")
    if edited.model.functions:
        edited.note("local functions were not examined: shapes that they fix stay fixed; inline them first")


def try_batch(edited: EditedModel, freed: Freed) -> None:
    """Compare outputs of a batch of three items with those of each alone.

    A model that cannot be run is noted. Raises `RequestError` naming the first node whose output differs.
    """
    batch = freed.batch
    if sum(tensor.nbytes for tensor in tensors_of(edited.model)) > INLINE_LIMIT_BYTES:
        edited.note("the dynamic batch was not tested because the model is large; compare its outputs in a later step")
        return
    with tempfile.TemporaryDirectory(prefix="ndld-flow-batch-") as folder:
        path = Path(folder) / "model.onnx"
        edited.model.graph.sort()
        save_model(edited.model, path)
        try:
            name, differing = _differing(path, edited, batch, freed.outputs)
            if name:
                differing += _first_mixing(edited, path, freed)
        except Exception as error:  # ONNX Runtime's own errors have no common base
            edited.note(f"the dynamic batch was not tested: {one_paragraph(error)[:300]}")
            return
    if differing:
        raise RequestError(
            f"a batch of {_ITEMS} gives other results than its items alone: {differing}. A node mixes "
            "items, fixes their number, or generates random numbers; `try_it: false` skips this test"
        )


def _first_mixing(edited: EditedModel, path: Path, freed: Freed) -> str:
    """Return a clause on the first node whose output differs; empty if none is found.

    The inner tensors become outputs, which are compared in the order of execution.
    """
    proto = onnx.load(path)
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in freed.inner if name not in known)
    inside = path.with_name("inside.onnx")
    onnx.save(proto, inside)
    name, _ = _differing(inside, edited, freed.batch, freed.inner)
    node = next((node for node in proto.graph.node if (name or freed.merged) in node.output), None)
    return f"; first at {node.op_type} {(node.name or node.output[0])!r}" if node is not None else ""


def _differing(path: Path, edited: EditedModel, batch: Batch, axes: Mapping[str, int]) -> tuple[str, str]:
    """Return the first output whose items differ, and a description; no output if the whole batch fails."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    specs = [_sized(spec, edited, batch) for spec in model_inputs(path)]
    given = {name: spec.model_copy(update=_UNSET) for name, spec in edited.inputs.items() if not spec.data_patterns}
    feeds = {name: feed.values for name, feed in make_feeds(specs, given).items()}
    names = [output.name for output in session.get_outputs()]
    items = []
    for item in range(_ITEMS):
        own = {name: _item(array, batch.axes.get(name), item, batch.size) for name, array in feeds.items()}
        items.append(dict(zip(names, session.run(None, own), strict=True)))
    try:
        together = dict(zip(names, session.run(None, feeds), strict=True))
    except Exception as error:  # ONNX Runtime's own errors have no common base
        return "", f"it fails ({one_paragraph(error)[:300]})"
    for item, alone in enumerate(items):
        for name, axis in axes.items():
            size = together[name].shape[axis] // _ITEMS
            if not _close(_item(together[name], axis, item, size), alone[name]):
                return name, f"output {name}, item {item}"
    return "", ""


def _sized(spec: TensorSpec, edited: EditedModel, batch: Batch) -> TensorSpec:
    """Return an input with three times its batch, and the recipe's sizes for other dynamic dimensions."""
    given = edited.inputs.get(spec.name)
    wanted = given.run_shape if given is not None else None
    dims = list(spec.shape or ())
    if wanted is not None and len(wanted) == len(dims):
        dims = [dim if isinstance(dim, int) else size for dim, size in zip(dims, wanted, strict=True)]
    axis = batch.axes.get(spec.name)
    if axis is not None:
        dims[axis] = _ITEMS * batch.size
    return replace(spec, shape=tuple(dims))


def _item(array: Array, axis: int | None, item: int, size: int) -> Array:
    if axis is None:
        return array
    return np.take(array, range(item * size, (item + 1) * size), axis)


def _close(array: Array, other: Array) -> bool:
    if array.shape != other.shape:
        return False
    if array.dtype.kind != "f":
        return bool((array == other).all())
    largest = float(np.nanmax(np.abs(other), initial=0))
    allowed = _TOLERANCE.get(array.dtype, _USUAL_TOLERANCE) * max(largest, 1e-6)
    return np.allclose(array, other, rtol=0, atol=allowed, equal_nan=True)
