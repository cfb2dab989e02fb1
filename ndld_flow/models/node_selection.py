"""Nodes selected by operator or by name."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.models.op_signatures import is_known_op, known_op_types


def op_name(node: ir.Node) -> str:
    """Return `Conv`, or `com.microsoft::FusedConv` for other domains."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def nodes_of_types(model: ir.Model, op_types: Sequence[str], setting: str) -> dict[str, list[ir.Node]]:
    """Return operator -> its nodes, in all subgraphs; empty for an ONNX operator that the model does not use.

    Raises `RequestError` for an operator that neither the model nor ONNX has.
    """
    nodes: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        nodes.setdefault(op_name(node), []).append(node)
    for op_type in op_types:
        domain, _, name = op_type.rpartition("::")
        if op_type not in nodes and not is_known_op(name, domain):
            near = suggest(op_type, [*nodes, *known_op_types()])
            raise RequestError(f"`{setting}`: there is no operator {op_type!r}: {near}")
    return {op_type: nodes.get(op_type, []) for op_type in op_types}


def nodes_named(model: ir.Model, patterns: Sequence[str], setting: str) -> dict[str, list[ir.Node]]:
    """Return pattern -> the nodes whose names it matches, in all subgraphs.

    `*` and `?` are wildcards; `/.../` is a regular expression, searched. Raises `RequestError` for a pattern that
    matches no node.
    """
    names: dict[str, list[ir.Node]] = {}
    for node in model.graph.all_nodes():
        if node.name:
            names.setdefault(node.name, []).append(node)
    selected: dict[str, list[ir.Node]] = {}
    for pattern in patterns:
        fits = name_matcher(pattern)
        selected[pattern] = [node for name, nodes in names.items() if fits(name) for node in nodes]
        if not selected[pattern]:
            near = suggest(pattern, names)
            raise RequestError(f"`{setting}`: no node of this model has a name like {pattern!r}: {near}")
    return selected
