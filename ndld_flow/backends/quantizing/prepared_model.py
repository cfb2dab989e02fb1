"""A model made ready to be quantised: what ONNX Runtime's quantizer takes for granted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ndld_flow.backends.editing.edited_model import EditedModel
from ndld_flow.backends.editing.opsets import convert_opset
from ndld_flow.backends.fp16.convert import prepare
from ndld_flow.backends.models.files import load_model, save_model
from ndld_flow.backends.models.node_selection import nodes_named, nodes_of_types
from ndld_flow.backends.models.op_signatures import is_op
from ndld_flow.backends.models.shape_inference import infer_shapes
from ndld_flow.backends.models.unique_names import UniqueNames
from ndld_flow.backends.precision.found_nodes import first_output
from ndld_flow.backends.quantizing.settings import QuantizeSettings

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class QuantizableNode:
    """A node that can be quantised with the settings at hand."""

    output: str
    """Its first output, which names it here: names may be empty or repeat in the model it came from."""
    name: str
    """Its name in the prepared model; never empty, and no other node's."""
    op_type: str
    tensors: tuple[str, ...]
    """Its float inputs and outputs that are no weights: whose ranges are needed."""
    weights: tuple[str, ...]
    """Its float inputs that are weights."""


@dataclass(frozen=True)
class PreparedModel:
    """A model on disk, ready to be quantised as often as wanted."""

    path: Path
    nodes: tuple[QuantizableNode, ...]
    """Those that can be quantised and were not excluded, in the order of execution."""
    excluded: int
    """How many nodes of the operators to quantise were excluded."""
    notes: tuple[str, ...]
    """Sentences for people."""


def prepare_model(source: Path, target: Path, settings: QuantizeSettings) -> PreparedModel:
    """Write `source` to `target` with local functions inlined, every node named, weights as initializers, shapes
    inferred, and in an opset that has the Q/DQ operators.

    Raises `ModelError` for a model that cannot be read or converted, `RequestError` for names and operators that are
    not there.
    """
    model = load_model(source)
    notes = prepare(model, source)
    excluded = _excluded(model, settings)
    chosen = nodes_of_types(model, settings.wanted_op_types, "op_types")
    if settings.op_types:
        notes += [f"op_types: this model has no {op_type}" for op_type, nodes in chosen.items() if not nodes]
    LiftConstantsToInitializersPass(lift_all_constants=False)(model)
    opset = model.opset_imports.get("", 0)
    if opset < settings.least_opset:
        convert_opset(EditedModel(model, source), settings.least_opset)
        notes.append(f"opset {opset} -> {settings.least_opset}, for the Q/DQ operators")
    UniqueNames(model).name_all(model)
    infer_shapes(model)
    save_model(model, target)
    found = [_quantizable(node) for node in model.graph if is_op(node, *settings.wanted_op_types)]
    able = [node for node in found if node is not None]
    nodes = tuple(node for node in able if node.output not in excluded)
    return PreparedModel(target, nodes, len(able) - len(nodes), tuple(notes))


def _excluded(model: ir.Model, settings: QuantizeSettings) -> set[str]:
    """First outputs of the nodes that the settings exclude."""
    named = nodes_named(model, settings.exclude.nodes, "exclude.nodes")
    typed = nodes_of_types(model, settings.exclude.op_types, "exclude.op_types")
    return {first_output(node) for nodes in (*named.values(), *typed.values()) for node in nodes}


def _quantizable(node: ir.Node) -> QuantizableNode | None:
    """None where no tensor of the node is float."""
    ports = [value for value in (*node.inputs, *node.outputs) if value is not None and value.dtype in _FLOATS]
    weights = [value.name or "" for value in ports if value.const_value is not None]
    tensors = [value.name or "" for value in ports if value.const_value is None]
    if not tensors:
        return None
    return QuantizableNode(first_output(node), node.name or "", node.op_type, tuple(tensors), tuple(weights))
