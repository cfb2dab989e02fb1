"""Forms of nodes for data with another order of axes, with their constants and axes changed accordingly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, graph_of
from ndld_flow.graph.edit.surgeries.transposed_tensors import transposed
from ndld_flow.graph.sanitize.edits import Array, dims_of, int_attribute, ints_attribute, is_standard
from ndld_flow.models.sparse_tensors import SparseInitializer

# fmt: off
_ONE_BY_ONE = frozenset((
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


@dataclass
class Renumbered:
    """Changes of a node: attributes and constant inputs."""

    attributes: dict[str, ir.Attr] = field(default_factory=dict)
    constants: dict[int, ir.TensorProtocol] = field(default_factory=dict)
    """Input -> the constant that replaces it."""
    keeps_order: bool = True
    """Whether its outputs are in the other order too. A reduction that drops axes may leave nothing to reorder."""

    def apply(self, edits: Rewriting, node: ir.Node) -> None:
        node.attributes.update(self.attributes)
        for index, tensor in self.constants.items():
            old = node.inputs[index] if index < len(node.inputs) else None
            while len(node.inputs) <= index:
                node.resize_inputs(index + 1)
            wish = f"{old.name}_moved" if old is not None else f"{node.outputs[0].name}_axes"
            node.replace_input_with(index, edits.add_constant(graph_of(node), tensor, wish))
            if old is not None:
                edits.drop_unread(old)


def renumber(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Return the node's form for data whose axis `perm[i]` was axis `i`; None if it depends on the order of axes."""
    if not is_standard(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if node.op_type in _ONE_BY_ONE:
        return _one_by_one(edits, node, perm)
    rule = _RULES.get("Reduce" if node.op_type in _REDUCTIONS else node.op_type)
    return rule(edits, node, perm) if rule is not None else None


def _one_by_one(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """f(x, constant) -> f(x, constant in the other order)"""
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


def _by_axis(default: int | None) -> Callable[[Rewriting, ir.Node, Sequence[int]], Renumbered | None]:
    """Concat, Split, Softmax, ...: one axis, as an attribute"""

    def rule(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
        axis = int_attribute(node, "axis", default if default is not None else 0)
        if axis is None or (default is None and "axis" not in node.attributes):
            return None
        return Renumbered({"axis": ir.AttrInt64("axis", perm[axis])})

    return rule


def _softmax(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Before opset 13 all axes from `axis` on count as one."""
    return _by_axis(-1)(edits, node, perm) if edits.opset_of(node) >= 13 else None


def _concat(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    new = _by_axis(None)(edits, node, perm)
    for index, value in enumerate(node.inputs):
        tensor = edits.constant(value)
        if new is None or isinstance(tensor, SparseInitializer):
            return None
        if tensor is not None:
            new.constants[index] = _moved(tensor, perm)
    return new


def _pad(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    if edits.opset_of(node) < 11:
        pads = ints_attribute(node, "pads")
        return None if pads is None else Renumbered({"pads": ir.AttrInt64s("pads", _spread(pads, perm))})
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return _by_axes_input(edits, node, perm, 3)
    amounts = edits.array(node.inputs[1])
    if amounts is None or amounts.size != 2 * len(perm):
        return None
    return Renumbered(constants={1: ir.Tensor(np.array(_spread(amounts.tolist(), perm), np.int64))})


def _spread(pads: Sequence[int], perm: Sequence[int]) -> list[int]:
    """Amounts for each axis, first all begins and then all ends."""
    rank = len(perm)
    moved = [0] * (2 * rank)
    for axis, new in enumerate(perm):
        moved[new], moved[new + rank] = pads[axis], pads[axis + rank]
    return moved


def _slice(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    if edits.opset_of(node) < 10:
        starts = ints_attribute(node, "starts") or ()
        axes = ints_attribute(node, "axes") or tuple(range(len(starts)))
        return Renumbered({"axes": ir.AttrInt64s("axes", [perm[axis] for axis in axes])})
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return _by_axes_input(edits, node, perm, 3)
    starts_array = edits.array(node.inputs[1])
    if starts_array is None:
        return None
    return Renumbered(constants={3: ir.Tensor(np.array(list(perm[: starts_array.size]), starts_array.dtype))})


def _by_axes_input(edits: Rewriting, node: ir.Node, perm: Sequence[int], index: int) -> Renumbered | None:
    axes = edits.array(node.inputs[index])
    return None if axes is None else Renumbered(constants={index: _axes_tensor(axes, perm)})


def _axes_tensor(axes: Array, perm: Sequence[int]) -> ir.TensorProtocol:
    return ir.Tensor(np.array([perm[int(axis)] for axis in axes.reshape(-1)], axes.dtype))


def _reduce(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """Reduce(x, axes); where it drops axes, the others must come in the same order either way"""
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


def _scales(edits: Rewriting, node: ir.Node, perm: Sequence[int]) -> Renumbered | None:
    """QuantizeLinear, DequantizeLinear: one scale, or one for each index of an axis"""
    tensor = edits.constant(node.inputs[1])
    if tensor is None or int_attribute(node, "block_size", 0) != 0:
        return None
    return Renumbered() if tensor.size == 1 else _by_axis(1)(edits, node, perm)


_RULES: dict[str, Callable[[Rewriting, ir.Node, Sequence[int]], Renumbered | None]] = {
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
