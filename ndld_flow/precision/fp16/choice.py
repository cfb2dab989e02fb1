"""Which groups of places become fp16 and which stay fp32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ndld_flow.models.element_types import subgraphs_of
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import Group, Groups, is_constant

_RARE = "few back ends make it in fp16"

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
"""Operators that ONNX lets be fp16 and that are kept in fp32 by default -> why."""


def why_sensitive(node: ir.Node) -> str:
    """Why a node is kept in fp32 by default; empty when it is not."""
    if is_op(node, "ScatterElements", "ScatterND"):
        reduction = node.attributes.get("reduction")
        return _RARE if reduction is not None and reduction.as_string() != "none" else ""
    return _SENSITIVE[node.op_type] if is_op(node, *_SENSITIVE) else ""


_FOLLOWS = "it only hands on values between fp32 nodes"
_IN_BODY = "it is inside {name}, which is blocked"


def keep_blocked(groups: Groups, blocked: Mapping[ir.Node, str]) -> None:
    """Keep all groups of the blocked nodes (node -> why), and of what is in their bodies, in fp32."""
    of_node = groups.of_node()
    for node, reason in _with_bodies(blocked).items():
        for group in of_node.get(node, ()):
            group.kept = group.kept or reason


def _with_bodies(blocked: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
    reasons = dict(blocked)
    for node in blocked:
        name = f"{node.op_type} {node.name!r}"
        for body in subgraphs_of(node):
            for inner in body.all_nodes():
                reasons.setdefault(inner, _IN_BODY.format(name=name))
    return reasons


def keep_shape_arithmetic(model: ir.Model, groups: Groups) -> None:
    """Keep in fp32 what is computed from sizes alone: fp16 counts exactly only to 2048."""
    derived = _size_derived(model)
    for group in groups.all:
        if not group.follows and any(value in derived for value in group.values):
            group.kept = group.kept or "it computes with sizes or positions, which need more than 11 bits"


_FRESH_DATA = frozenset({"ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike"})
"""Operators that read only the shape of what they are given."""


def _size_derived(model: ir.Model) -> set[ir.Value]:
    """Values computed from Shape and Size and constants, and nothing else."""
    derived: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        if is_op(node, "Shape", "Size"):
            derived.update(node.outputs)
        elif not is_op(node, *_FRESH_DATA) and not any(subgraphs_of(node)):
            inputs = [value for value in node.inputs if value is not None]
            sizes = [value for value in inputs if value in derived]
            if sizes and all(value in derived or is_constant(value) for value in inputs):
                derived.update(node.outputs)
    return derived


def choose_fp32(groups: Groups) -> set[Group]:
    """The groups that stay fp32: those that must, and those that only stand between them.

    A group that computes nothing (`follows`) stays fp32 when everything it reads is fp32 and somebody wants it so
    (or nobody wants fp16): converting it would add Casts and lose bits for nothing.
    """
    fixed = {group for group in groups.all if group.kept}
    open_ = {group for group in groups.all if group.follows and not (group.kept or group.halved)}
    fp32 = _Either(fixed, open_)
    waiting = list(open_)
    while waiting:
        group = waiting.pop()
        if group in open_ and not _stays(group, groups, fp32):
            open_.discard(group)
            waiting += _neighbours(group, groups)
    for group in open_:
        group.kept = _FOLLOWS
    return fixed | open_


class _Either:
    """Membership in one of two sets that keep changing."""

    def __init__(self, *sets: set[Group]) -> None:
        self.sets = sets

    def __contains__(self, group: Group) -> bool:
        return any(group in members for members in self.sets)


def _stays(group: Group, groups: Groups, fp32: _Either) -> bool:
    sources = (groups.maker.get(use.value) for use in group.uses if use.value is not None)
    if any(source is not None and source not in fp32 for source in sources):
        return False
    readers = _readers(group, groups)
    return any(reader in fp32 for reader in readers) or not readers


def _readers(group: Group, groups: Groups) -> list[Group]:
    return [reader for value in group.values for reader in groups.readers.get(value, ()) if reader is not group]


def _neighbours(group: Group, groups: Groups) -> Iterable[Group]:
    for use in group.uses:
        if use.value is not None and use.value in groups.maker:
            yield groups.maker[use.value]
    yield from _readers(group, groups)
