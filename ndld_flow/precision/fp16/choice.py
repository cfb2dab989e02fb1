"""The choice of the nodes that stay in fp32: blocked ones, sensitive ones, and those between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.models.element_types import has_subgraphs, is_op, subgraphs_of
from ndld_flow.models.lazy_tensors import Survey, survey
from ndld_flow.models.nodes import NOT_FP16, fixed_tensor, nodes_named, nodes_of_types, precision_of
from ndld_flow.precision.type_groups import Group, Groups, is_constant

_RARE = "few runtimes support it in fp16"

_SENSITIVE: Mapping[str, str] = {
    "Bernoulli": _RARE,
    "BlackmanWindow": _RARE,
    "CumSum": "a running sum outgrows fp16",
    "EyeLike": _RARE,
    "GridSample": "sampling positions need more than 11 bits",
    "HammingWindow": _RARE,
    "HannWindow": _RARE,
    "MaxRoiPool": "box corners in pixels need more than 11 bits",
    "MeanVarianceNormalization": _RARE,
    "MelWeightMatrix": _RARE,
    "RandomNormal": _RARE,
    "RandomNormalLike": _RARE,
    "RandomUniform": _RARE,
    "RandomUniformLike": _RARE,
    "RoiAlign": "box corners in pixels need more than 11 bits",
}
"""Operators that ONNX allows in fp16 but that stay in fp32 by default -> reason."""


def why_sensitive(node: ir.Node) -> str:
    """Return why a node is kept in fp32 by default; empty if it is not."""
    if is_op(node, "ScatterElements", "ScatterND"):
        reduction = node.attributes.get("reduction")
        return _RARE if reduction is not None and reduction.as_string() != "none" else ""
    return _SENSITIVE[node.op_type] if is_op(node, *_SENSITIVE) else ""


def keep_blocked(groups: Groups, blocked: Mapping[ir.Node, str]) -> None:
    """Keep all groups of the blocked nodes (node -> why) and of the nodes in their bodies in fp32."""
    of_node, reasons = groups.of_node(), dict(blocked)
    for node in blocked:
        for body in subgraphs_of(node):
            for inner in body.all_nodes():
                reasons.setdefault(inner, f"it is inside {node.op_type} {node.name!r}, which is blocked")
    for node, reason in reasons.items():
        for group in of_node.get(node, ()):
            group.kept = group.kept or reason


def keep_shape_arithmetic(model: ir.Model, groups: Groups) -> None:
    """Keep positions and sizes, and what is computed only from them, in fp32: fp16 has integers only up to 2048."""
    derived = _size_derived(model)
    for group in groups.all:
        if not group.follows and any(value in derived for value in group.values):
            group.kept = group.kept or "it computes with sizes or positions, which need more than 11 bits"


_PREDICATES = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")
)
_VALUES: Mapping[str, Sequence[int]] = {
    "Compress": (0,),
    "ConstantOfShape": (),
    "Expand": (0,),
    "EyeLike": (),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "OneHot": (2,),
    "Pad": (0, 2),
    "Reshape": (0,),
    "Resize": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Trilu": (0,),
    "Unsqueeze": (0,),
    "Upsample": (0,),
    "Where": (1, 2),
}
"""Operator -> the inputs whose values its output has; the others are shapes, places and choices."""


def _size_derived(model: ir.Model) -> set[ir.Value]:
    """Return the values computed only from Shape, Size and the model's numbers.

    Zeros expanded to the shape of the input, and rows of a table looked up by position, are the model's numbers: the
    first step of an unrolled LSTM multiplies them, and its weights are those of all other steps.
    """
    derived: set[ir.Value] = set()
    numbers: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        if is_op(node, "Shape", "Size"):
            derived.update(node.outputs)
            continue
        if has_subgraphs(node) or node.op_type.startswith("Random"):
            continue
        places = _VALUES[node.op_type] if is_op(node, *_VALUES) else range(len(node.inputs))
        inputs = [node.inputs[place] for place in places if place < len(node.inputs)]
        values = [value for value in inputs if value is not None]
        if all(value in derived or value in numbers or is_constant(value) for value in values):
            from_sizes = any(value in derived for value in values) and not is_op(node, *_PREDICATES)
            (derived if from_sizes else numbers).update(node.outputs)
    return derived


def choose_fp32(groups: Groups) -> set[Group]:
    """Return the groups that stay fp32: those that must, and those that only move values between them.

    A group that computes nothing (`follows`) stays fp32 if all its inputs are fp32 and at least one reader is (or it
    has no readers): converting it would only add Casts and lose precision.
    """
    fixed = {group for group in groups.all if group.kept}
    undecided = {group for group in groups.all if group.follows and not (group.kept or group.halved)}

    def is_fp32(group: Group) -> bool:
        return group in fixed or group in undecided

    waiting = list(undecided)
    while waiting:
        group = waiting.pop()
        makers = (groups.maker.get(use.value) for use in group.uses if use.value is not None)
        sources = [source for source in makers if source is not None]
        readers = [reader for value in group.values for reader in groups.readers.get(value, ()) if reader is not group]
        stays = all(map(is_fp32, sources)) and (any(map(is_fp32, readers)) or not readers)
        if group in undecided and not stays:
            undecided.discard(group)
            waiting += [*sources, *readers]
    for group in undecided:
        group.kept = "it only moves values between fp32 nodes"
    return fixed | undecided


@dataclass(frozen=True)
class ValueLimits:
    """Limits of weights: nodes that read a weight outside them stay in fp32."""

    max_abs: float
    min_abs: float
    share: float
    """Fraction of a weight's nonzero values that may be below `min_abs`."""


@dataclass(frozen=True)
class Fp16Options:
    """Options of a conversion to fp16."""

    keep_io: bool | Sequence[str] = True
    op_types: Sequence[str] = ()
    nodes: Sequence[str] = ()
    values_outside: ValueLimits | None = None
    keep_sensitive: bool = True
    chosen: Callable[[ir.Model], Mapping[ir.Node, str]] = lambda model: {}
    """Returns further nodes to keep -> why; called after functions are inlined and nodes sorted."""


def blocked_nodes(model: ir.Model, request: Fp16Options, notes: list[str]) -> dict[ir.Node, str]:
    """Return node -> why it must stay fp32."""
    reasons: dict[ir.Node, str] = dict(request.chosen(model))
    for pattern, nodes in nodes_named(model, request.nodes, "block.nodes").items():
        reasons |= {node: f"block.nodes {pattern!r}" for node in nodes if node not in reasons}
    for op_type, nodes in nodes_of_types(model, request.op_types, "block.op_types").items():
        reasons |= {node: f"block.op_types {op_type!r}" for node in nodes if node not in reasons}
        if not nodes:
            notes.append(f"block.op_types: this model has no {op_type}")
    for node in model.graph.all_nodes():
        if (precision := precision_of(node)) in NOT_FP16:
            reasons.setdefault(node, f"it is constrained to {precision}")
    if request.values_outside is not None:
        reasons = _outside(model, request.values_outside) | reasons
    # ONNX Runtime 1.27 to 1.32 ends with a segmentation fault where the first axis is moved behind the other batch axes
    # before a MatMul by a weight. The MatMul alone in fp32 is not enough: the fusion also looks through Casts.
    reasons = {
        node: "ONNX Runtime crashes when it fuses this Transpose and MatMul in fp16"
        for matmul in model.graph.all_nodes()
        if is_op(matmul, "MatMul") and (weight := matmul.inputs[1]) is not None and is_constant(weight)
        if weight.shape is None or len(weight.shape) == 2
        for chain in _chains(matmul.inputs[0], None, (matmul,))
        for node in chain
    } | reasons
    if request.keep_sensitive:
        reasons = {n: why for n in model.graph.all_nodes() if (why := why_sensitive(n))} | reasons
    return reasons


def _outside(model: ir.Model, limits: ValueLimits) -> dict[ir.Node, str]:
    """Return the nodes that read a weight with values outside the limits -> the weight and its values."""
    surveys: dict[ir.Value, Survey] = {}
    reasons: dict[ir.Node, str] = {}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            tensor = fixed_tensor(value)
            if value is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            if value not in surveys:
                surveys[value] = survey(tensor, limits.min_abs)
            found, where = surveys[value], f"block.values_outside: {value.name} has"
            if found.largest > limits.max_abs:
                reasons.setdefault(node, f"{where} values up to {found.largest:.4g}")
            elif found.small > limits.share * found.count:
                reasons.setdefault(node, f"{where} {found.small} of {found.count} values below {limits.min_abs:.2g}")
    return reasons


_PASSED = ("Cast", "Concat", "Div", "Dropout", "Identity", "Mul")
"""Operators past which ONNX Runtime moves a Transpose before it fuses it with a MatMul."""


def _chains(
    value: ir.Value | None, perm: tuple[int, ...] | None, behind: tuple[ir.Node, ...]
) -> Iterator[tuple[ir.Node, ...]]:
    """Yield the nodes from each such Transpose to a reader; `perm` is that of the Transposes between them."""
    node = None if value is None else value.producer()
    if node is None or len(behind) > 16:
        return
    chain = (*behind, node)
    if is_op(node, "Transpose") and "perm" in node.attributes:
        own = tuple(node.attributes["perm"].as_ints())
        if perm is not None and len(perm) != len(own):
            return
        perm = own if perm is None else tuple(own[axis] for axis in perm)
        # The first axis moves behind the other batch axes, or behind all.
        rank = len(perm)
        if rank > 2 and tuple(perm) in ((*range(1, rank - 1), 0, rank - 1), (*range(1, rank), 0)):
            yield chain
    elif not is_op(node, *_PASSED):
        return
    for source in node.inputs:
        yield from _chains(source, perm, chain)
