"""Merging of chains of Reshape, Transpose and Unsqueeze, and constant targets for Reshapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import (
    Dim,
    Edits,
    dims_of,
    int_attribute,
    ints_attribute,
    is_standard,
    only_reader,
    producer_of_type,
)
from ndld_flow.graph.sanitize.shape_values import ShapeValues


def simplify_reshapes(edits: Edits, values: ShapeValues) -> None:
    """Apply the rules below to every Reshape, Transpose and Unsqueeze."""
    rules = {"Reshape": _simplify_reshape, "Transpose": _merge_transposes, "Unsqueeze": _merge_unsqueezes}
    for graph in edits.graphs():
        for node in tuple(graph):
            rule = rules.get(node.op_type)
            if rule is not None and is_standard(node) and node.graph is not None:
                rule(edits, values, node)


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
    target = _constant_target(known.elements, dims_of(node.inputs[0]))
    if target is None:
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    shape = edits.add_initializer(graph, np.array(target, np.int64), f"{node.outputs[0].name}_shape")
    node.replace_input_with(1, shape)
    edits.done["Reshape given a constant shape"] += 1


def _constant_target(elements: tuple[Dim, ...], dims: tuple[Dim, ...] | None) -> list[int] | None:
    """Return each element as a number: 0 copies the input's dimension of the same name, one unknown may be -1."""
    if 0 in elements:
        return None
    target = [_as_number(e, i, dims) for i, e in enumerate(elements)]
    return target if target.count(-1) <= 1 else None


def _as_number(element: Dim, index: int, dims: tuple[Dim, ...] | None) -> int:
    if isinstance(element, int):
        return element
    if element is not None and dims is not None and index < len(dims) and dims[index] == element:
        return 0
    return -1


def _set_output_shape(values: ShapeValues, node: ir.Node) -> None:
    """Set the output's shape from the elements of the target where inference did not find it."""
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
    _set_axes(edits, node, axes)
    edits.done["Unsqueezes merged"] += 1


def _axes(edits: Edits, node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes of an Unsqueeze as indices into its output of that rank."""
    axes = ints_attribute(node, "axes")
    if len(node.inputs) > 1:
        array = edits.array(node.inputs[1])
        axes = None if array is None else tuple(int(i) for i in array.reshape(-1))
    return None if axes is None else tuple(i + rank if i < 0 else i for i in axes)


def _set_axes(edits: Edits, node: ir.Node, axes: list[int]) -> None:
    if len(node.inputs) == 1:
        node.attributes["axes"] = ir.AttrInt64s("axes", axes)
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    node.replace_input_with(1, edits.add_initializer(graph, np.array(axes, np.int64), f"{node.outputs[0].name}_axes"))
