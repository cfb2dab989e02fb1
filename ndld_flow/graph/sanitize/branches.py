"""Replacement of an If with a constant condition by its branch."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.graph.sanitize.edits import Edits, is_standard


def inline_decided_branches(edits: Edits) -> None:
    """If(true, then, else) -> then; If(false, then, else) -> else"""
    for graph in tuple(edits.graphs()):
        for node in tuple(graph):
            if node.op_type == "If" and is_standard(node) and node.graph is graph:
                branch = _decided_branch(edits, node)
                if branch is not None and _fits(edits, node, branch):
                    _inline(edits, graph, node, branch)
                    edits.done["If decided"] += 1


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
        _move_initializer(edits, graph, branch, value)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        edits.take_over(new, old)
    edits.remove(node)


def _move_initializer(edits: Edits, graph: ir.Graph, branch: ir.Graph, value: ir.Value) -> None:
    tensor = value.const_value
    assert tensor is not None and value.name is not None
    name = edits.new_name(f"{value.name}_inlined") if value.name in graph.initializers else value.name
    new = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, new)
    del branch.initializers[value.name]
    graph.register_initializer(new)
