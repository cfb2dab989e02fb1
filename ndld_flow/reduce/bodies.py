"""Reduction inside of nodes: replace a node by its body, or nodes of its bodies by constants.

An If becomes the branch that its first sample takes, a Loop or Scan its first iteration, and a call of a local function
the function's nodes. Where a failure needs the node itself, nodes of its bodies become constants of their shape.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.graph.edit.edit_file import sort_model
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.functions import inline_functions
from ndld_flow.graph.edit.node_groups import deep_nodes, replace_uses
from ndld_flow.graph.edit.subgraphs import inline_branches
from ndld_flow.models.element_types import is_op
from ndld_flow.models.files import all_graphs, save_model
from ndld_flow.models.nodes import graph_of, node_label, put_constant, put_first
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array
from ndld_flow.reduce.cutting import Captured, list_nodes, open_whole
from ndld_flow.reduce.part import CutError, Opened, Whole

_SMALLEST_OPSET = 13
"""From here on, Unsqueeze and Gather are as they are written here."""


def open_node(whole: Whole, kept: Collection[int], index: int, path: Path) -> Opened:
    """Write the model with a node replaced by its body, and return the nodes that stand for the kept ones.

    Raises CutError for a node without a body, or one whose body cannot replace it.
    """
    edited = open_whole(whole.path)
    nodes = list(edited.model.graph)
    others = {_identity(nodes[each]) for each in kept if each != index}
    before = {_identity(node) for node in nodes if node is not nodes[index]}
    try:
        _replace(edited, nodes[index], whole)
        sort_model(edited.model)
        save_model(edited.model, path)
    except (NdldFlowError, ValueError, KeyError) as error:
        raise CutError(str(error)) from error
    facts = tuple(list_nodes(path))
    remaining = tuple(
        fact.index
        for fact in facts
        for first in (fact.outputs[0] if fact.outputs else fact.name,)
        if first in others or first not in before
    )
    return Opened(nodes=facts, kept=remaining)


def _identity(node: ir.Node) -> str:
    return next((str(value.name) for value in node.outputs if value.name), node_label(node))


def _replace(edited: EditedModel, node: ir.Node, whole: Whole) -> None:
    function = edited.model.functions.get(node.op_identifier())
    if function is not None:
        inline_functions(edited, [function], keep=False)
    elif is_op(node, "If"):
        condition = node.inputs[0]
        assert condition is not None
        if condition.const_value is not None:
            taken = bool(condition.const_value.numpy())
        elif whole.capture:
            taken = bool(np.asarray(Captured(whole).read(str(condition.name))[0]).all())
        else:
            taken = True
        inline_branches(edited, [node], ("then_branch" if taken else "else_branch"))
    elif is_op(node, "Loop", "Scan"):
        if (edited.model.graph.opset_imports.get("") or 0) < _SMALLEST_OPSET:
            raise CutError(f"a {node.op_type} of opset {edited.model.graph.opset_imports.get('')} is not opened")
        (_first_of_loop if node.op_type == "Loop" else _first_of_scan)(edited, node)
        inline_branches(edited, [node], "then_branch")
    else:
        raise CutError(f"{node_label(node)!r} has no body")


def _first_of_loop(edited: EditedModel, node: ir.Node) -> None:
    """Turn a Loop into an If with its first iteration as both branches."""
    body = node.attributes["body"].as_graph()
    states = node.inputs[2:]
    first = [_constant(edited, body, np.array(0, np.int64)), _constant(edited, body, np.array(True)), *states]
    _feed(edited, body, first)
    scanned = body.outputs[1 + len(states) :]
    _become_branch(edited, node, body, [*body.outputs[1 : 1 + len(states)], *_stacked(edited, body, scanned)])


def _first_of_scan(edited: EditedModel, node: ir.Node) -> None:
    """Turn a Scan into an If with its first iteration as both branches."""
    body = node.attributes["body"].as_graph()
    count = node.attributes["num_scan_inputs"].as_int()
    states, sequences = node.inputs[: len(node.inputs) - count], node.inputs[len(node.inputs) - count :]
    axes = node.attributes["scan_input_axes"].as_ints() if "scan_input_axes" in node.attributes else [0] * count
    zero = _constant(edited, body, np.array(0, np.int64))
    slices = []
    for value, axis in zip(sequences, axes, strict=True):
        taken = ir.node("Gather", [value, zero], {"axis": axis})
        taken.outputs[0].name = edited.fresh_name("first_slice")
        put_first(body, taken)
        slices.append(taken.outputs[0])
    _feed(edited, body, [*states, *slices])
    scanned = body.outputs[len(states) :]
    _become_branch(edited, node, body, [*body.outputs[: len(states)], *_stacked(edited, body, scanned)])


def _feed(edited: EditedModel, body: ir.Graph, values: Sequence[ir.Value | None]) -> None:
    """Replace the inputs of a body by values from outside of it."""
    for formal, value in zip(list(body.inputs), values, strict=True):
        if value is None:
            raise CutError("an input of its body has no value")
        for position, output in enumerate(body.outputs):
            if output is formal:
                copied = ir.node("Identity", [value])
                copied.outputs[0].name = edited.fresh_name(str(formal.name))
                body.append(copied)
                body.outputs[position] = copied.outputs[0]
        formal.replace_all_uses_with(value)
    body.inputs.clear()


def _stacked(edited: EditedModel, body: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the outputs of a single iteration as scan outputs have them: with a first dimension of 1."""
    stacked = []
    for value in values:
        node = ir.node("Unsqueeze", [value, _constant(edited, body, np.array([0], np.int64))])
        node.outputs[0].name = edited.fresh_name(str(value.name))
        body.append(node)
        stacked.append(node.outputs[0])
    return stacked


def _constant(edited: EditedModel, graph: ir.Graph, array: Array) -> ir.Value:
    type_ = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    value = ir.Value(name=edited.fresh_name("constant"), type=type_, shape=ir.Shape(array.shape))
    put_constant(graph, value, ir.Tensor(array))
    return value


def _become_branch(edited: EditedModel, node: ir.Node, body: ir.Graph, outputs: Sequence[ir.Value]) -> None:
    body.outputs[:] = outputs
    graph = graph_of(node)
    condition = _constant(edited, graph, np.array(True))
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    node.resize_inputs(1)
    node.replace_input_with(0, condition)
    node.attributes.clear()
    node.attributes["then_branch"] = ir.AttrGraph("then_branch", body)
    node.op_type = "If"
    edited.forget_names()


def list_body_nodes(path: Path, kept: Collection[int]) -> list[str]:
    """Return names for the nodes in bodies of kept nodes that constants can replace, in order."""
    edited = _inferred(path)
    return [label for label, node in _inside(edited, kept) if _fixed(node)]


def hollow(path: Path, kept: Collection[int], needed: Collection[str], target: Path) -> None:
    """Write the model with the nodes in bodies of kept nodes replaced by constants, except those that are needed.

    Raises CutError if the rest cannot be saved.
    """
    edited = _inferred(path)
    for label, node in _inside(edited, kept):
        if label in needed or not _fixed(node):
            continue
        graph = graph_of(node)
        for value in node.outputs:
            assert value.type is not None and value.shape is not None
            zeros = np.ones([int(str(dim)) for dim in value.shape], value.type.dtype.numpy())
            replace_uses(value, _constant(edited, graph, zeros), (), all_graphs(edited.model))
        graph.remove(node, safe=True)
    try:
        save_model(edited.model, target)
    except (NdldFlowError, ValueError) as error:
        raise CutError(str(error)) from error


def _inferred(path: Path) -> EditedModel:
    edited = open_whole(path)
    infer_shapes(edited.model)
    return edited


def _inside(edited: EditedModel, kept: Collection[int]) -> list[tuple[str, ir.Node]]:
    """Return the nodes in bodies of kept nodes without bodies of their own, the last first."""
    owners = [node for index, node in enumerate(edited.model.graph) if index in kept]
    inside = [node for node in deep_nodes(owners) if node not in owners and node.op_type != "Constant"]
    return [(f"{index} {node_label(node)}", node) for index, node in enumerate(inside)][::-1]


def _fixed(node: ir.Node) -> bool:
    """Return whether all outputs of a node have a known type and shape."""
    return all(
        value.type is not None
        and value.type.dtype.name in ("FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64", "BOOL")
        and value.shape is not None
        and all(isinstance(dim, int) for dim in value.shape)
        for value in node.outputs
    )
