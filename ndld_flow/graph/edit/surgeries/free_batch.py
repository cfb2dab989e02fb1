"""Dynamic batch for a model that was exported for a fixed one: nodes with a fixed batch are found by inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.batch_axes import Batch, BatchAxes, axis_after_reshape, outer_counts, shapes_with
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, graph_of, known_shapes, label, some_of
from ndld_flow.graph.sanitize.edits import dims_of, int_attribute, is_standard
from ndld_flow.models.input_shapes import real_inputs
from ndld_flow.models.scopes import own_subgraphs

_MOST_ROUNDS = 1000
_MEASURING = ("Shape", "Size")
"""Operators whose outputs hold the batch as a number, not as an axis."""


@dataclass
class Freed:
    """The result: the batch, and what was changed."""

    batch: Batch
    outputs: dict[str, int] = field(default_factory=dict)
    """Output -> its batch axis."""
    changed: list[str] = field(default_factory=list)
    """Nodes that had a fixed batch."""


def free_batch(edited: EditedModel, inputs: Sequence[str], axes: Mapping[str, int], name: str) -> Freed:
    """Make the batch of inputs dynamic, and that of outputs that depend on them.

    Notes outputs that do not follow the batch, with the nodes where it ends. Raises `RequestError` naming nodes that
    cannot take another batch.
    """
    model = edited.model
    batch = _batch(model, inputs, axes, name)
    edits = Rewriting(edited)
    _open_body_inputs(model)
    freed = Freed(batch)
    inside = {value: value.shape for value in real_inputs(model)}
    with known_shapes(model):
        found = _free(edits, batch, freed)
    _check(found, model)
    _forget_fixed_shapes(found, model)
    for value, shape in inside.items():
        value.shape = shape
        if (axis := batch.axes.get(value.name or "")) is not None and shape is not None:
            value.shape = ir.Shape([_named(dim, name) if i == axis else dim for i, dim in enumerate(shape)])
    freed.outputs.update(_declare_outputs(found, model))
    _tell_ends(edited, found, freed)
    return freed


def _named(dim: int | ir.SymbolicDim, name: str) -> str | ir.SymbolicDim:
    """Return the name of the dimension; one that is dynamic already keeps its name."""
    return dim if isinstance(dim, ir.SymbolicDim) and dim.value else name


def _batch(model: ir.Model, patterns: Sequence[str], axes: Mapping[str, int], name: str) -> Batch:
    known = {value.name or "": value for value in real_inputs(model)}
    for one in (*patterns, *axes):
        if not any(map(name_matcher(one), known)):
            raise RequestError(f"the model has no input {one!r}; {suggest(one, known)}")
    chosen = [one for one in known if one in axes or not patterns or any(name_matcher(p)(one) for p in patterns)]
    sizes = {one: _size(known[one], axes.get(one, 0)) for one in chosen}
    first = next((size for size in sizes.values() if size is not None), None)
    if first is None:
        raise RequestError("no input has a dimension that could count the items of a batch")
    if patterns:
        odd = [one for one in chosen if sizes[one] not in (first, 0)]
        if odd:
            raise RequestError(f"the batch is {first or 'free'} in one input, but not in {some_of(odd)}")
    fixed = next((size for size in sizes.values() if size), 1)
    fits = {one: axes.get(one, 0) for one in chosen if sizes[one] in (fixed, 0)}
    return Batch(fits, fixed, name)


def _size(value: ir.Value, axis: int) -> int | None:
    """Return the size of a dimension: 0 when it is dynamic, None where there is none."""
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


def _free(edits: Rewriting, batch: Batch, freed: Freed) -> BatchAxes:
    """Change nodes in the order of dependence, until none has a fixed batch."""
    model = edits.model
    before = shapes_with(model, batch, batch.size)
    for _ in range(_MOST_ROUNDS):
        found = BatchAxes(batch, before, shapes_with(model, batch, batch.other))
        found.outer.update(outer_counts(found, _nodes(model)))
        changed = [node for node in _nodes(model) if _free_node(edits, found, node)]
        freed.changed += [label(node) for node in changed]
        if not changed:
            return found
        before = shapes_with(model, batch, batch.size)
    raise AssertionError("a node that is changed has no batch built in")


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for graph in model.graphs() for node in graph if is_standard(node)]


def _free_node(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(edits, found, node)


def _reshape(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    """Reshape(x, [1, 64, -1]) -> Reshape(x, [0, 64, -1])"""
    source, output = node.inputs[0], node.outputs[0]
    axis, target = found.axis(source), edits.array(node.inputs[1]) if len(node.inputs) > 1 else None
    if axis is None or source is None or target is None or int_attribute(node, "allowzero", 0) != 0:
        return False
    old, new = found.before[source], found.before.get(output)
    if old is None or new is None:
        return False
    place = axis_after_reshape(old, axis, new, found.batch.size, found.outer.get(source, 1))
    if place is None or target[place] <= 0:
        return False
    numbers = [int(number) for number in target]
    if place == axis and old[axis] == new[place]:
        numbers[place] = 0
    else:
        if -1 in numbers:
            other = new[numbers.index(-1)]
            if not isinstance(other, int):
                return False
            numbers[numbers.index(-1)] = other
        numbers[place] = -1
    _put_ints(edits, node, 1, numbers)
    return True


def _expand(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    """Expand(x, [4, 8, 8]) -> Expand(x, [1, 8, 8]) where x has the batch of 4"""
    source = node.inputs[0]
    axis, target = found.axis(source), edits.array(node.inputs[1])
    dims = found.before.get(source) if source is not None else None
    if axis is None or target is None or dims is None:
        return False
    place = axis + target.size - len(dims)
    if place < 0 or target[place] == 1:
        return False
    _put_ints(edits, node, 1, [1 if i == place else int(number) for i, number in enumerate(target)])
    return True


def _concat(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    """Concat(x, token) -> Concat(x, Expand(token, [batch, 1, 1]))"""
    model = next((value for value in node.inputs if found.axis(value) is not None), None)
    axis = found.axis(model)
    along = int_attribute(node, "axis", 0)
    dims = found.before.get(model) if model is not None else None
    if model is None or axis is None or along is None or dims is None or along % len(dims) == axis:
        return False
    short = [index for index, value in enumerate(node.inputs) if _is_one(edits, found, value, axis)]
    for index in short:
        _stretch(edits, node, index, axis, model, axis)
    return bool(short)


def _recurrent(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    """LSTM(x, initial state) -> LSTM(x, Expand(initial state, [1, batch, 1]))"""
    source = node.inputs[0]
    axis = found.axis(source)
    if axis is None or source is None:
        return False
    place = 0 if int_attribute(node, "layout", 0) else 1
    states = [index for index in (5, 6) if index < len(node.inputs) and node.inputs[index] is not None]
    short = [index for index in states if _is_one(edits, found, node.inputs[index], place)]
    for index in short:
        _stretch(edits, node, index, place, source, axis)
    return bool(short)


def _resize(edits: Rewriting, found: BatchAxes, node: ir.Node) -> bool:
    """Resize(x, sizes [1, 3, 8, 8]) -> Resize(x, sizes [batch, 3, 8, 8])"""
    axis = found.axis(node.inputs[0])
    sizes = edits.array(node.inputs[3]) if len(node.inputs) > 3 else None
    if axis is None or sizes is None or "axes" in node.attributes or int(sizes[axis]) != found.batch.size:
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
        edits.drop_unread(old)
    return True


_RULES: dict[str, Callable[[Rewriting, BatchAxes, ir.Node], bool]] = {
    "Concat": _concat,
    "Expand": _expand,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "Resize": _resize,
}


def _is_one(edits: Rewriting, found: BatchAxes, value: ir.Value | None, axis: int) -> bool:
    """Return whether a tensor holds one item for any batch."""
    if value is None or found.axis(value) is not None:
        return False
    dims = found.before.get(value, dims_of(value))
    return dims is not None and axis < len(dims) and dims[axis] == 1


def _stretch(edits: Rewriting, node: ir.Node, index: int, place: int, model: ir.Value, axis: int) -> None:
    """Repeat the single item of an input for each item of another tensor."""
    value = node.inputs[index]
    assert value is not None
    dims = dims_of(value)
    rank = len(dims) if dims is not None else place + 1
    graph, wish = graph_of(node), f"{value.name}_batch"
    count = _count(edits, node, model, axis)
    parts = [edits.ints(graph, [1] * length, f"{wish}_ones") for length in (place, rank - place - 1) if length]
    parts.insert(1 if place else 0, count)
    shape = edits.put_for(node, "Concat", parts, {"axis": 0}, f"{wish}_shape") if len(parts) > 1 else count
    node.replace_input_with(index, edits.put_for(node, "Expand", [value, shape], wish=wish))


def _count(edits: Rewriting, node: ir.Node, model: ir.Value, axis: int) -> ir.Value:
    """Return the number of items of a tensor, as a vector of one element."""
    graph, wish = graph_of(node), f"{node.name or node.op_type}_batch"
    shape = edits.put_for(node, "Shape", [model], wish=f"{wish}_of")
    return edits.put_for(node, "Gather", [shape, edits.ints(graph, [axis], f"{wish}_axis")], {"axis": 0}, wish)


def _put_ints(edits: Rewriting, node: ir.Node, index: int, numbers: Sequence[int]) -> None:
    old = node.inputs[index]
    node.replace_input_with(index, edits.ints(graph_of(node), numbers, f"{node.name or node.op_type}_target"))
    if old is not None:
        edits.drop_unread(old)


def _check(found: BatchAxes, model: ir.Model) -> None:
    """Raises `RequestError` for nodes that inference refuses for another batch, the first ones only."""
    refused = [
        node
        for node in _nodes(model)
        if any(found.lost(value) for value in node.outputs)
        and not any(value is not None and found.lost(value) for value in node.inputs)
    ]
    if refused:
        raise RequestError(
            f"the batch cannot be free: {some_of([label(node) for node in refused])} cannot take another one than "
            f"{found.batch.size}; change these nodes first, or name only some `inputs`"
        )


def _forget_fixed_shapes(found: BatchAxes, model: ir.Model) -> None:
    """Remove recorded shapes of intermediate tensors, because runtimes rely on them."""
    for value in (value for node in _nodes(model) for value in node.outputs):
        if found.before.get(value) != found.after.get(value) and value not in model.graph.outputs:
            value.shape = None


def _declare_outputs(found: BatchAxes, model: ir.Model) -> Iterator[tuple[str, int]]:
    for value in dict.fromkeys(model.graph.outputs):
        shape = found.open_shape(value)
        axis = found.axis(value)
        if shape is not None and axis is not None:
            value.shape = shape
            yield value.name or "", axis
        elif shape is None and value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))


def _tell_ends(edited: EditedModel, found: BatchAxes, freed: Freed) -> None:
    stuck = [value.name or "" for value in edited.model.graph.outputs if value.name not in freed.outputs]
    ends = [label(node) for node in _nodes(edited.model) if node.op_type not in _MEASURING and _ends_batch(found, node)]
    if stuck:
        where = f"; it ends at {some_of(ends)}" if ends else ""
        edited.note(f"outputs that do not follow the batch: {some_of(stuck)}{where}")
    if not freed.outputs:
        where = f": it ends at {some_of(ends)}" if ends else ""
        raise RequestError(f"no output follows the batch of {some_of(list(freed.batch.axes))}{where}")
    if edited.model.functions:
        edited.note("local functions were not looked into: shapes that they fix stay fixed; inline them first")


def _ends_batch(found: BatchAxes, node: ir.Node) -> bool:
    reads = any(value is not None and found.before.get(value) != found.after.get(value) for value in node.inputs)
    return reads and all(found.before.get(value) == found.after.get(value) for value in node.outputs)
