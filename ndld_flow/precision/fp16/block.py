"""Which nodes a recipe keeps in fp32, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.models.float_tensors import Survey, survey
from ndld_flow.models.node_precision import NOT_FP16, precision_of
from ndld_flow.models.node_selection import nodes_named, nodes_of_types
from ndld_flow.models.type_groups import constant_tensor
from ndld_flow.precision.fp16.choice import why_sensitive


@dataclass(frozen=True)
class ValueLimits:
    """Weights outside these keep the nodes that read them in fp32."""

    max_abs: float
    min_abs: float
    share: float
    """Fraction of a weight's values other than 0 that may lie below `min_abs`."""


@dataclass(frozen=True)
class Fp16Request:
    """What is asked of a conversion."""

    keep_io: bool = True
    op_types: Sequence[str] = ()
    nodes: Sequence[str] = ()
    values_outside: ValueLimits | None = None
    keep_sensitive: bool = True
    chosen: Callable[[ir.Model], Mapping[ir.Node, str]] = lambda model: {}
    """Nodes that something else chose, once functions are inlined and nodes in order -> why."""


def blocked_nodes(model: ir.Model, request: Fp16Request, notes: list[str]) -> dict[ir.Node, str]:
    """Node -> why it was asked to stay fp32."""
    reasons: dict[ir.Node, str] = dict(request.chosen(model))
    for pattern, nodes in nodes_named(model, request.nodes, "block.nodes").items():
        reasons |= {node: f"block.nodes {pattern!r}" for node in nodes if node not in reasons}
    for op_type, nodes in nodes_of_types(model, request.op_types, "block.op_types").items():
        reasons |= {node: f"block.op_types {op_type!r}" for node in nodes if node not in reasons}
        if not nodes:
            notes.append(f"block.op_types: this model has no {op_type}")
    for node in model.graph.all_nodes():
        if (precision := precision_of(node)) in NOT_FP16:
            reasons.setdefault(node, f"it was asked to be {precision}")
    if request.values_outside is not None:
        reasons = _outside(model, request.values_outside) | reasons
    if request.keep_sensitive:
        reasons = {n: why for n in model.graph.all_nodes() if (why := why_sensitive(n))} | reasons
    return reasons


def _outside(model: ir.Model, limits: ValueLimits) -> dict[ir.Node, str]:
    """Nodes that read a weight with values outside the limits -> which weight, and how far outside."""
    surveys: dict[ir.Value, Survey] = {}
    reasons: dict[ir.Node, str] = {}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            tensor = constant_tensor(value)
            if value is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
                continue
            if value not in surveys:
                surveys[value] = survey(tensor, limits.min_abs)
            reason = _why_outside(surveys[value], limits)
            if reason:
                reasons.setdefault(node, f"block.values_outside: {value.name} {reason}")
    return reasons


def _why_outside(found: Survey, limits: ValueLimits) -> str:
    if found.largest > limits.max_abs:
        return f"has values up to {found.largest:.4g}"
    if found.small > limits.share * found.count:
        return f"has {found.small} of {found.count} values below {limits.min_abs:.2g}"
    return ""
