"""Layouts of inputs and outputs, changed by Transposes inside the model.

Transposes move past nodes for which the order of axes does not matter, where fewer Transposes remain. A region is the
set of tensors between Transposes of one order: all of them can be computed in the other order when the axes of its
nodes are renumbered and its constants are transposed. This is done when more Transposes lead into or out of the region
than its borders need. Results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, prune_values, read_instead, transposed
from ndld_flow.graph.edit.interface import pick
from ndld_flow.graph.sanitize.edits import Array, dims_of, int_attribute, ints_attribute, producer_of_type
from ndld_flow.models.input_shapes import real_inputs
from ndld_flow.models.input_shapes import show_shape as shape_text
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import graph_of

# fmt: off
_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf",
    "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or",
    "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
))
# fmt: on
# fmt: off
_BROADCASTING = frozenset((
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
))
# fmt: on
_REDUCTIONS = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_BROADCASTING_OPSET = 7
"""Before this opset, Add and others broadcast by attributes."""
Perm = tuple[int, ...]
_CHANNELS = "C"


@dataclass
class Renumbered:
    """Changes of a node: attributes and constant inputs."""

    attributes: dict[str, ir.Attr] = field(default_factory=dict)
    constants: dict[int, ir.TensorProtocol] = field(default_factory=dict)
    """Input -> the constant that replaces it."""
    keeps_order: bool = True
    """True if its outputs are in the other order too. A reduction that drops axes may leave nothing to reorder."""

    def apply(self, edits: OperationEdits, node: ir.Node) -> None:
        node.attributes.update(self.attributes)
        for index, tensor in self.constants.items():
            old = node.inputs[index] if index < len(node.inputs) else None
            while len(node.inputs) <= index:
                node.resize_inputs(index + 1)
            wish = f"{old.name}_moved" if old is not None else f"{node.outputs[0].name}_axes"
            node.replace_input_with(index, edits.add_constant(graph_of(node), tensor, wish))
            if old is not None:
                prune_values([old])


def renumber(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Return the node's form for data whose axis `perm[i]` was axis `i`; None if it depends on the order of axes."""
    if node.domain or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if node.op_type in _ELEMENTWISE:
        return _elementwise(edits, node, perm)
    rule = _RULES.get("Reduce" if node.op_type in _REDUCTIONS else node.op_type)
    return rule(edits, node, perm) if rule is not None else None


def _elementwise(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Return f(x, constant) with the constant in the other order."""
    new = Renumbered()
    if node.op_type not in _BROADCASTING:
        return new
    if edits.opset_of(node) < _BROADCASTING_OPSET:
        return None
    for index, value in enumerate(node.inputs):
        tensor = edits.constant(value)
        if tensor is None:
            dims = dims_of(value)
            if dims is None or len(dims) != len(perm):
                return None
        elif tensor.size != 1 or len(tensor.shape) > len(perm):
            if isinstance(tensor, SparseInitializer) or len(tensor.shape) > len(perm):
                return None
            new.constants[index] = _moved(tensor, perm)
    return new


def _moved(tensor: ir.TensorProtocol, perm: Sequence[int]) -> ir.TensorProtocol:
    inverse = [tuple(perm).index(axis) for axis in range(len(perm))]
    if len(tensor.shape) == len(perm):
        return transposed(tensor, inverse)
    array = tensor.numpy()
    whole = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return ir.Tensor(np.ascontiguousarray(whole.transpose(inverse)), dtype=tensor.dtype)


def _by_axis(default: int | None) -> Callable[[OperationEdits, ir.Node, Sequence[int]], Renumbered | None]:
    """Return the rule for Concat, Split, Softmax, ..., which have one axis as an attribute."""

    def rule(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
        axis = int_attribute(node, "axis", default if default is not None else 0)
        if axis is None or (default is None and "axis" not in node.attributes):
            return None
        return Renumbered({"axis": ir.AttrInt64("axis", perm[axis])})

    return rule


def _softmax(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Renumber the axis; before opset 13, all axes from `axis` on are treated as one."""
    return _by_axis(-1)(edits, node, perm) if edits.opset_of(node) >= 13 else None


def _concat(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    new = _by_axis(None)(edits, node, perm)
    for index, value in enumerate(node.inputs):
        tensor = edits.constant(value)
        if new is None or isinstance(tensor, SparseInitializer):
            return None
        if tensor is not None:
            new.constants[index] = _moved(tensor, perm)
    return new


def _pad(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    if edits.opset_of(node) < 11:
        pads = ints_attribute(node, "pads")
        return None if pads is None else Renumbered({"pads": ir.AttrInt64s("pads", _spread(pads, perm))})
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return _by_axes_input(edits, node, perm)
    amounts = edits.array(node.inputs[1])
    if amounts is None or amounts.size != 2 * len(perm):
        return None
    return Renumbered(constants={1: ir.Tensor(np.array(_spread(amounts.tolist(), perm), np.int64))})


def _spread(pads: Sequence[int], perm: Sequence[int]) -> list[int]:
    """Reorder amounts of padding: first the begins of all axes, then their ends."""
    rank = len(perm)
    moved = [0] * (2 * rank)
    for axis, new in enumerate(perm):
        moved[new], moved[new + rank] = pads[axis], pads[axis + rank]
    return moved


def _slice(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    if edits.opset_of(node) < 10:
        starts = ints_attribute(node, "starts") or ()
        axes = ints_attribute(node, "axes") or tuple(range(len(starts)))
        return Renumbered({"axes": ir.AttrInt64s("axes", [perm[axis] for axis in axes])})
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return _by_axes_input(edits, node, perm)
    starts_array = edits.array(node.inputs[1])
    if starts_array is None:
        return None
    return Renumbered(constants={3: ir.Tensor(np.array(list(perm[: starts_array.size]), starts_array.dtype))})


def _by_axes_input(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    axes = edits.array(node.inputs[3])
    return None if axes is None else Renumbered(constants={3: _axes_tensor(axes, perm)})


def _axes_tensor(axes: Array, perm: Sequence[int]) -> ir.TensorProtocol:
    return ir.Tensor(np.array([perm[int(axis)] for axis in axes.reshape(-1)], axes.dtype))


def _reduce(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Renumber the axes; if they are dropped, the order of the others must stay the same."""
    new, axes = Renumbered(), ints_attribute(node, "axes")
    if axes is not None:
        new.attributes["axes"] = ir.AttrInt64s("axes", [perm[axis] for axis in axes])
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        array = edits.array(node.inputs[1])
        if array is None or not array.size:
            return None
        axes = tuple(array.reshape(-1).tolist())
        new.constants[1] = _axes_tensor(array, perm)
    else:
        return None
    if int_attribute(node, "keepdims", 1) == 1:
        return new
    dropped = {axis % len(perm) for axis in axes}
    left = [perm[axis] for axis in range(len(perm)) if axis not in dropped]
    new.keeps_order = False
    return new if left == sorted(left) else None


def _scales(edits: OperationEdits, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Renumber the axis of QuantizeLinear and DequantizeLinear, unless they have a single scale."""
    tensor = edits.constant(node.inputs[1])
    if tensor is None or int_attribute(node, "block_size", 0) != 0:
        return None
    return Renumbered() if tensor.size == 1 else _by_axis(1)(edits, node, perm)


_RULES: dict[str, Callable[[OperationEdits, ir.Node, Sequence[int]], Renumbered | None]] = {
    "Concat": _concat,
    "DequantizeLinear": _scales,
    "LogSoftmax": _softmax,
    "Pad": _pad,
    "QuantizeLinear": _scales,
    "Reduce": _reduce,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _by_axis(0),
}


def push_transposes(edits: OperationEdits) -> int:
    """Move and cancel Transposes in every graph; returns how many fewer there are."""
    before = _count(edits)
    with known_shapes(edits.model):
        for graph in edits.graphs():
            _fold_pairs(edits, graph)
            for node in tuple(graph):
                if node.graph is graph and _perm(node) is not None:
                    _move(edits, node)
            _fold_pairs(edits, graph)
    return before - _count(edits)


@dataclass
class _Region:
    """A set of tensors that can be computed before a Transpose instead of after it."""

    perm: Perm
    entries: dict[ir.Node, None] = field(default_factory=dict)
    """Transposes that lead into the region."""
    nodes: dict[ir.Node, Renumbered] = field(default_factory=dict)
    """Nodes of the region -> their form for the other order."""
    values: dict[ir.Value, None] = field(default_factory=dict)
    """Outputs of both in this order."""

    def enter(self, transposes: Iterable[ir.Node]) -> None:
        for node in transposes:
            self.entries[node] = None
            self.values[node.outputs[0]] = None

    def add(self, node: ir.Node, new: Renumbered) -> None:
        self.nodes[node] = new
        if new.keeps_order:
            self.values.update(dict.fromkeys(node.outputs))


def _move(edits: OperationEdits, start: ir.Node) -> None:
    region = _grown(edits, start)
    if not region.nodes:
        return
    inside = region.values
    outside = {node: [r for r in _readers(node.outputs) if r not in region.nodes] for node in region.entries}
    kept_entries = [node for node in region.entries if outside[node] or node.outputs[0].is_graph_output()]
    borders = [value for value in inside if _needs_transpose(value, region)]
    back = _inverse(region.perm)
    cancelled = [  # Transposes back from this order
        reader
        for value in inside
        for reader in _readers([value])
        if reader not in region.nodes and reader.graph is value.graph and _perm(reader) == back
    ]
    added = sum(value.producer() not in region.entries for value in borders)
    if len(region.entries) - len(kept_entries) + len(cancelled) > added:
        _apply_order(edits, region)


def _grown(edits: OperationEdits, start: ir.Node) -> _Region:
    perm = _perm(start)
    assert perm is not None
    region = _Region(perm)
    region.enter([start])
    waiting = [start]
    while waiting:
        for reader in _readers(waiting.pop().outputs):
            if reader in region.nodes or reader.graph is not start.graph:
                continue
            entries = _entries(region, reader)
            new = renumber(edits, reader, perm) if entries is not None else None
            if entries is None or new is None:
                continue
            region.add(reader, new)
            region.enter(entries)
            waiting += [*entries, *([reader] if new.keeps_order else [])]
    return region


def _entries(region: _Region, reader: ir.Node) -> list[ir.Node] | None:
    """Return further Transposes of the same order that the node reads; None if it reads a tensor without one."""
    entries = []
    for value in reader.inputs:
        if value is None or value in region.values or value.is_initializer() or producer_of_type(value, "Constant"):
            continue
        node = producer_of_type(value, "Transpose")
        if node is None or _perm(node) != region.perm or node.graph is not reader.graph:
            return None
        entries.append(node)
    return entries


def _readers(values: Sequence[ir.Value]) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for value in values for use in value.uses()))


def _needs_transpose(value: ir.Value, region: _Region) -> bool:
    """Return whether a node other than a Transpose reads it in the old order."""
    if value.is_graph_output():
        return True
    return any(
        reader not in region.nodes and not (_perm(reader) and reader.graph is value.graph)
        for reader in _readers([value])
    )


def _apply_order(edits: OperationEdits, region: _Region) -> None:
    """Compute the region in the other order, with a Transpose where the old order is still read."""
    for node, new in region.nodes.items():
        new.apply(edits, node)
    for entry in region.entries:
        for use in tuple(entry.outputs[0].uses()):
            if use.node in region.nodes:
                use.node.replace_input_with(use.idx, entry.inputs[0])
    for value in [value for node, new in region.nodes.items() if new.keeps_order for value in node.outputs]:
        _restore_order(edits, value, region)
    for node in region.entries:
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            edits.remove(node)


def _restore_order(edits: OperationEdits, value: ir.Value, region: _Region) -> None:
    """Connect outside readers to a Transpose of the value, which keeps the value's name."""
    outside = [use for use in value.uses() if use.node not in region.nodes]
    shape = dims_of(value)
    inverse = _inverse(region.perm)
    value.shape = None if shape is None else ir.Shape([shape[axis] for axis in inverse])
    if not outside and not value.is_graph_output():
        return
    node = value.producer()
    assert node is not None
    name = value.name
    value.name = edits.new_name(f"{name}_moved")
    restored = edits.put_before(node, "Transpose", [value], {"perm": list(region.perm)}, f"{name}_transposed")
    transpose = restored.producer()
    assert transpose is not None and isinstance(node.graph, ir.Graph)
    node.graph.remove(transpose)
    node.graph.insert_after(node, transpose)
    restored.name, restored.type = name, value.type
    restored.shape = None if shape is None else ir.Shape(shape)
    for use in outside:
        use.node.replace_input_with(use.idx, restored)
    if value.is_graph_output():
        node.graph.outputs[:] = [restored if output is value else output for output in node.graph.outputs]


def _fold_pairs(edits: OperationEdits, graph: ir.Graph) -> None:
    """Replace Transpose(Transpose(x, p), q) by Transpose(x, p[q]), or by x."""
    for node in tuple(graph):
        inner = producer_of_type(node.inputs[0], "Transpose") if _perm(node) is not None else None
        first = _perm(inner) if inner is not None else None
        if inner is None or first is None or inner.inputs[0] is None:
            continue
        perm = tuple(first[axis] for axis in _perm(node) or ())
        if perm == tuple(range(len(perm))) and edits.may_replace(node.outputs[0], inner.inputs[0]):
            edits.bypass(node, inner.inputs[0], "Transpose cancelled")
        else:
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)
            node.replace_input_with(0, inner.inputs[0])
        if not inner.outputs[0].uses() and not inner.outputs[0].is_graph_output():
            edits.remove(inner)


def _perm(node: ir.Node) -> Perm | None:
    return ints_attribute(node, "perm") if node.op_type == "Transpose" and node.domain == "" else None


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _count(edits: OperationEdits) -> int:
    return sum(node.op_type == "Transpose" for graph in edits.graphs() for node in graph)


def order(source: str, target: str) -> tuple[int, ...]:
    """Return the permutation from one layout to another: `NCHW` to `NHWC` is (0, 2, 3, 1)."""
    return tuple(source.index(axis) for axis in target)


def permuted(shape: ir.Shape, perm: Sequence[int]) -> ir.Shape:
    """Return a shape with permuted axes; names of dimensions stay."""
    return ir.Shape([shape[axis] for axis in perm])


def change_layouts(
    edited: EditedModel, inputs: Sequence[str], outputs: Sequence[str], layout: str, push: bool
) -> tuple[list[str], int]:
    """Change the layout of inputs and outputs; returns their names, and the number of Transposes that pushing removed.

    Raises `RequestError` for patterns that fit none, and tensors of another rank.
    """
    edits = OperationEdits(edited)
    graph = edited.model.graph
    chosen_inputs = pick(real_inputs(edited.model), inputs, "input")
    chosen_outputs = pick(graph.outputs, outputs, "output")
    for value in (*chosen_inputs, *chosen_outputs):
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise RequestError(f"{value.name} cannot become {layout}: it is a sequence or optional, not a tensor")
        if value.shape is None or len(value.shape) != len(layout):
            shape = "unknown" if value.shape is None else shape_text(value.shape)
            raise RequestError(
                f"{value.name} cannot become {layout}, which has {len(layout)} dimensions: its shape is {shape}"
            )
    # `NHWC` for `NCHW` and vice versa.
    rest = layout.replace(_CHANNELS, "").removeprefix("N")
    batch = "N" if layout.startswith("N") else ""
    last = layout.endswith(_CHANNELS)
    inside = f"{batch}{_CHANNELS}{rest}" if last else f"{batch}{rest}{_CHANNELS}"
    for value in chosen_inputs:
        if value.is_graph_output():
            raise RequestError(f"input {value.name} is also an output of the model: its layout cannot change alone")
        transpose_input(edits, value, layout, inside)
    for value in chosen_outputs:
        _transpose_output(edits, value, inside, layout)
    names = [value.name or "" for value in (*chosen_inputs, *chosen_outputs)]
    return names, push_transposes(edits) if push else 0


def transpose_input(edits: OperationEdits, value: ir.Value, layout: str, inside: str) -> ir.Value:
    """Declare an input in another layout; returns the tensor that its readers read instead."""
    graph = edits.model.graph
    moved = edits.put_first(
        graph, "Transpose", [value], {"perm": list(order(layout, inside))}, f"{value.name}_{inside.lower()}"
    )
    moved.type, moved.shape = value.type, value.shape
    if value.shape is not None:
        value.shape = permuted(value.shape, order(inside, layout))
    read_instead(value, moved)
    return moved


def _transpose_output(edits: OperationEdits, value: ir.Value, inside: str, layout: str) -> None:
    graph = edits.model.graph
    name = value.name
    if value.is_graph_input():
        raise RequestError(f"output {name} is also an input of the model: its layout cannot change alone")
    perm = order(inside, layout)
    value.name = edits.new_name(f"{name}_{inside.lower()}")
    moved = edits.put_last(graph, "Transpose", [value], {"perm": list(perm)}, f"{name}_{layout.lower()}")
    moved.name, moved.type = name, value.type
    moved.shape = None if value.shape is None else permuted(value.shape, perm)
    graph.outputs[:] = [moved if output is value else output for output in graph.outputs]
