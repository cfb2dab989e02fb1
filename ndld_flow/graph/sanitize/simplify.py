"""Simplification: branches that are never taken, nodes that change nothing, and chains of Reshape, Transpose and
Unsqueeze.

Each rule's docstring is its algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import (
    Dim,
    Edits,
    dims_of,
    int_attribute,
    ints_attribute,
    make_names_unique,
    only_reader,
    producer_of_type,
    same_known_dims,
)
from ndld_flow.graph.sanitize.shapes import ShapeValues, visited_shape_values
from ndld_flow.models.element_types import is_op
from ndld_flow.models.nodes import graph_of


def inline_decided_branches(edits: Edits) -> None:
    """If(true, then, else) -> then; If(false, then, else) -> else"""
    for graph in tuple(edits.graphs()):
        for node in tuple(graph):
            if is_op(node, "If") and node.graph is graph:
                branch = _decided_branch(edits, node)
                if branch is not None and _fits(edits, node, branch):
                    _inline(edits, graph, node, branch)
                    edits.done["If decided"] += 1
    make_names_unique(edits)


def _decided_branch(edits: Edits, node: ir.Node) -> ir.Graph | None:
    condition = edits.array(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    attribute = node.attributes.get("then_branch" if condition.reshape(-1)[0] else "else_branch")
    return attribute.as_graph() if attribute is not None and not attribute.is_ref() else None


def _fits(edits: Edits, node: ir.Node, branch: ir.Graph) -> bool:
    """Return whether each output of the branch has its own producing node, so that it can become the If's output."""
    outputs = list(branch.outputs)
    if branch.initializers and isinstance(node.graph, ir.Graph) and not edits.may_hold_initializers(node.graph):
        return False
    made_inside = all(value.producer() is not None and value.producer().graph is branch for value in outputs)  # type: ignore[union-attr]
    return made_inside and len(set(outputs)) == len(outputs) == len(node.outputs)


def _inline(edits: Edits, graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    outputs = list(branch.outputs)
    branch.outputs.clear()
    for value in tuple(branch.initializers.values()):
        assert value.name is not None
        name = edits.new_name(f"{value.name}_inlined") if value.name in graph.initializers else value.name
        moved = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, moved)
        del branch.initializers[value.name]
        graph.register_initializer(moved)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        edits.take_over(new, old)
    edits.remove(node)


_WIDER: dict[ir.DataType, frozenset[ir.DataType]] = {
    # Casts from the key to these types are lossless.
    ir.DataType.FLOAT16: frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.BFLOAT16: frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.FLOAT: frozenset((ir.DataType.DOUBLE,)),
    ir.DataType.INT32: frozenset((ir.DataType.INT64, ir.DataType.DOUBLE)),
    ir.DataType.INT8: frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.UINT8: frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)),
    ir.DataType.BOOL: frozenset(
        (ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT16, ir.DataType.FLOAT)
    ),
}


def remove_noops(edits: Edits, op_types: Collection[str] | None = None) -> None:
    """Bypass every node that a rule recognizes as a no-op; only of `op_types` if given."""
    values = visited_shape_values(edits)
    for node in edits.nodes(*(_RULES if op_types is None else _RULES.keys() & set(op_types))):
        same = _RULES[node.op_type](edits, values, node) if node.inputs else None
        if same is not None:
            edits.bypass(node, same, f"{node.op_type} removed")


def _dropout(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Dropout(x) -> x in inference mode"""
    opset = edits.opset(graph_of(node))
    if opset < 7:
        return node.inputs[0] if int_attribute(node, "is_test", 0) else None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        training = edits.array(node.inputs[2])
        return node.inputs[0] if training is not None and not training.any() else None
    return node.inputs[0]


def _cast(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Cast(x) to x's own type -> x; Cast(Cast(x) to a wider type) back to x's type -> x"""
    source, target = node.inputs[0], int_attribute(node, "to", 0)
    if source is None or not target:
        return None
    if source.dtype is not None and source.dtype.value == target:
        return source
    inner = producer_of_type(source, "Cast")
    origin = inner.inputs[0] if inner is not None else None
    if origin is None or origin.dtype is None or origin.dtype.value != target or source.dtype is None:
        return None
    return origin if source.dtype in _WIDER.get(origin.dtype, frozenset()) else None


def _same_shape(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Reshape, Expand, Flatten, Squeeze, Slice, Tile (x) -> x if the shape does not change"""
    source = node.inputs[0]
    return source if same_known_dims(dims_of(source), dims_of(node.outputs[0])) else None


def _slice(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Slice(x, from 0, to the end, step 1) -> x"""
    source = node.inputs[0]
    if edits.opset(graph_of(node)) < 10 or len(node.inputs) < 3:
        return None
    steps = _ints(edits, node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
    starts, ends = _ints(edits, node, 1), _ints(edits, node, 2)
    if steps is None or set(steps) != {1} or starts is None or set(starts) != {0}:
        return None
    if ends is not None and min(ends) >= 2**31 - 1:
        return source
    return _same_shape(edits, values, node)


def _pad(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Pad(x, all 0) -> x"""
    pads = _ints(edits, node, 1) if edits.opset(graph_of(node)) >= 11 else ints_attribute(node, "pads")
    return node.inputs[0] if pads is not None and not any(pads) else None


def _expand(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Expand(x, shape) -> x if shape is all 1, or x's own shape"""
    source = node.inputs[0]
    known, dims = values.of(node.inputs[1]), dims_of(source)
    if known is None or dims is None or len(known.elements) > len(dims):
        return None
    tail = dims[len(dims) - len(known.elements) :]
    unchanged = all(e == 1 or (e == d and e is not None) for e, d in zip(known.elements, tail, strict=True))
    return source if unchanged else None


def _tile(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Tile(x, all 1) -> x"""
    repeats = _ints(edits, node, 1) if len(node.inputs) == 2 else None
    return node.inputs[0] if repeats is not None and set(repeats) <= {1} else None


def _transpose(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Transpose(x, identity permutation) -> x"""
    perm = ints_attribute(node, "perm")
    return node.inputs[0] if perm is not None and perm == tuple(range(len(perm))) else None


def _only_input(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Concat(x), Sum(x), Max(x), Min(x), Mean(x) -> x"""
    return node.inputs[0] if len(node.inputs) == 1 else None


def _neutral(number: float, commutes: bool) -> Callable[[Edits, ShapeValues, ir.Node], ir.Value | None]:
    """x + 0, x - 0, x * 1, x / 1 -> x if the constant does not broadcast x to a larger shape"""

    def rule(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
        pairs = [(node.inputs[0], node.inputs[1])]
        if commutes:
            pairs.append((node.inputs[1], node.inputs[0]))
        for source, constant in pairs:
            if source is not None and _is_neutral(edits, source, constant, number):
                return source
        return None

    return rule


def _is_neutral(edits: Edits, source: ir.Value, constant: ir.Value | None, number: float) -> bool:
    tensor = edits.constant(constant)
    dims = dims_of(source)
    if tensor is None or tensor.size != 1 or dims is None or len(tensor.shape) > len(dims):
        return False
    return bool(np.all(tensor.numpy() == number))


def _unsqueeze(edits: Edits, values: ShapeValues, node: ir.Node) -> ir.Value | None:
    """Squeeze(Unsqueeze(x, axes), axes) -> x, and Unsqueeze(Squeeze(x)) -> x if the shapes are equal"""
    inner = producer_of_type(node.inputs[0], "Squeeze", "Unsqueeze", "Reshape", "Flatten")
    if inner is None:
        return _same_shape(edits, values, node)
    origin = inner.inputs[0]
    return origin if same_known_dims(dims_of(origin), dims_of(node.outputs[0])) else None


def _ints(edits: Edits, node: ir.Node, index: int) -> tuple[int, ...] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    array = edits.array(value)
    return None if array is None else tuple(int(e) for e in array.reshape(-1))


_RULES: dict[str, Callable[[Edits, ShapeValues, ir.Node], ir.Value | None]] = {
    "Identity": lambda edits, values, node: node.inputs[0],
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _unsqueeze,
    "Flatten": _unsqueeze,
    "Squeeze": _unsqueeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Transpose": _transpose,
    "Concat": _only_input,
    "Sum": _only_input,
    "Max": _only_input,
    "Min": _only_input,
    "Mean": _only_input,
    "Add": _neutral(0.0, commutes=True),
    "Sub": _neutral(0.0, commutes=False),
    "Mul": _neutral(1.0, commutes=True),
    "Div": _neutral(1.0, commutes=False),
}


def simplify_reshapes(edits: Edits) -> None:
    """Apply the rules below to every Reshape, Transpose and Unsqueeze."""
    values = visited_shape_values(edits)
    rules = {"Reshape": _simplify_reshape, "Transpose": _merge_transposes, "Unsqueeze": _merge_unsqueezes}
    for node in edits.nodes(*rules):
        rules[node.op_type](edits, values, node)


def _simplify_reshape(edits: Edits, values: ShapeValues, node: ir.Node) -> None:
    """Reshape(x, computed) -> Reshape(x, constant of 0 and -1); Reshape(Reshape(x)) -> Reshape(x)"""
    if len(node.inputs) < 2 or int_attribute(node, "allowzero", 0) != 0:
        return
    _set_output_shape(values, node)
    if edits.constant(node.inputs[1]) is None:
        _fix_target(edits, values, node)
    inner = producer_of_type(node.inputs[0], "Reshape", "Flatten", "Squeeze", "Unsqueeze")
    target = edits.array(node.inputs[1])
    if inner is not None and target is not None and 0 not in target and inner.inputs[0] is not None:
        node.replace_input_with(0, inner.inputs[0])
        edits.done["Reshape chains shortened"] += 1


def _fix_target(edits: Edits, values: ShapeValues, node: ir.Node) -> None:
    known = values.of(node.inputs[1])
    if known is None:
        return
    # each element as a number: 0 copies the input's dimension of the same name, one unknown may be -1
    dims, target = dims_of(node.inputs[0]) or (), list[int]()
    for index, element in enumerate(known.elements):
        is_copied = element is not None and index < len(dims) and dims[index] == element
        target.append(element if isinstance(element, int) else 0 if is_copied else -1)
    if 0 in known.elements or target.count(-1) > 1:
        return
    graph = graph_of(node)
    shape = edits.add_initializer(graph, np.array(target, np.int64), f"{node.outputs[0].name}_shape")
    node.replace_input_with(1, shape)
    edits.done["Reshape given a constant shape"] += 1


def _set_output_shape(values: ShapeValues, node: ir.Node) -> None:
    """Set the output's shape from the elements of the target if inference did not find it."""
    known, output = values.of(node.inputs[1]), node.outputs[0]
    if known is None or known.scalar or 0 in known.elements or -1 in known.elements:
        return
    dims = dims_of(output)
    if dims is None or len(dims) != len(known.elements):
        output.shape = ir.Shape(known.elements)
        return
    if any(_is_unknown(d) and not _is_unknown(e) for d, e in zip(dims, known.elements, strict=True)):
        output.shape = ir.Shape([d if e is None else e for d, e in zip(dims, known.elements, strict=True)])


def _is_unknown(dim: Dim) -> bool:
    return dim is None or (isinstance(dim, str) and dim.startswith("unk__"))


def _merge_transposes(edits: Edits, values: ShapeValues, node: ir.Node) -> None:
    """Transpose(Transpose(x, p), q) -> Transpose(x, p[q])"""
    inner = producer_of_type(node.inputs[0], "Transpose")
    outer_perm = ints_attribute(node, "perm")
    inner_perm = ints_attribute(inner, "perm") if inner is not None else None
    if inner is None or outer_perm is None or inner_perm is None or inner.inputs[0] is None:
        return
    node.attributes["perm"] = ir.AttrInt64s("perm", [inner_perm[i] for i in outer_perm])
    node.replace_input_with(0, inner.inputs[0])
    edits.done["Transposes merged"] += 1


def _merge_unsqueezes(edits: Edits, values: ShapeValues, node: ir.Node) -> None:
    """Unsqueeze(Unsqueeze(x, a), b) -> Unsqueeze(x, a and b)"""
    inner = producer_of_type(node.inputs[0], "Unsqueeze")
    dims = dims_of(node.outputs[0])
    if inner is None or dims is None or not only_reader(inner.outputs[0]):
        return
    first, second = _axes(edits, inner, len(dims) - len(_axes(edits, node, 0) or ())), _axes(edits, node, len(dims))
    if first is None or second is None or inner.inputs[0] is None:
        return
    kept = [i for i in range(len(dims)) if i not in second]
    axes = sorted([*second, *(kept[i] for i in first)])
    node.replace_input_with(0, inner.inputs[0])
    if len(node.inputs) == 1:
        node.attributes["axes"] = ir.AttrInt64s("axes", axes)
    else:
        name = f"{node.outputs[0].name}_axes"
        node.replace_input_with(1, edits.add_initializer(graph_of(node), np.array(axes, np.int64), name))
    edits.done["Unsqueezes merged"] += 1


def _axes(edits: Edits, node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes of an Unsqueeze as indices into its output of that rank."""
    axes = edits.axes(node)
    return None if axes is None else tuple(i + rank if i < 0 else i for i in axes)
