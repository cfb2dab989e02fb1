"""A model without the branches that its samples never take: what they compute can be looked at then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.inside.capture import open_inside
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.tensors import Array
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_DEEPEST = 8
"""Ifs in Ifs in Ifs ...: more than this are left as they are."""


def write_taken(source: Path, target: Path, samples: Iterable[Mapping[str, Array]], settings: SessionSettings) -> Path:
    """`source`, or `target` where every If that takes one branch in all samples is replaced by what it holds.

    Tensors keep their names.
    """
    model = load_model(source)
    if not any(is_op(node, "If") for node in model.graph):
        return source
    path = source
    for _ in range(_DEEPEST):
        prepare(model, source)
        decided = _decided(path, model, samples, settings)
        if not decided:
            break
        for node, taken in decided.items():
            _take(model.graph, node, node.attributes["then_branch" if taken else "else_branch"].as_graph())
        save_model(model, target)
        path = target
    return path


def _decided(
    path: Path, model: ir.Model, samples: Iterable[Mapping[str, Array]], settings: SessionSettings
) -> dict[ir.Node, bool]:
    """Ifs of the main graph that take the same branch in all samples -> whether it is the first."""
    asked = {node: node.inputs[0] for node in model.graph if is_op(node, "If")}
    made = {node: value.name or "" for node, value in asked.items() if value is not None and value.producer()}
    if not made:
        return {}
    session = open_inside(path, list(dict.fromkeys(made.values())), settings)
    wanted = {value.name for value in session.session.get_inputs()}
    seen: dict[str, set[bool]] = {name: set() for name in made.values()}
    for sample in samples:
        bound = session.bind({name: array for name, array in sample.items() if name in wanted})
        bound.once()
        for name, array in bound.outputs().items():
            seen[name] |= {True, False} if array is None or array.size != 1 else {bool(array.reshape(-1)[0])}
    return {node: next(iter(seen[name])) for node, name in made.items() if len(seen[name]) == 1}


def _take(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    """Put a branch where its If stands. Its outputs keep their names, and so do the If's."""
    outputs = list(branch.outputs)
    branch.outputs.clear()
    for value in tuple(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        graph.register_initializer(value)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        name, old.name = old.name, None
        same = ir.Value(name=name, type=old.type, shape=old.shape)
        graph.insert_before(node, ir.Node("", "Identity", [new], outputs=[same]))
        old.replace_all_uses_with(same, replace_graph_outputs=True)
    graph.remove(node, safe=True)
