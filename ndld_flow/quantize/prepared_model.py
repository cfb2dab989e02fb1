"""Preparation of a model for quantization: the form that ONNX Runtime's quantizer assumes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import number
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.opsets import convert_opset
from ndld_flow.models.files import load_model, save_model, summarize_model
from ndld_flow.models.node_selection import nodes_named, nodes_of_types
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.unique_names import UniqueNames
from ndld_flow.precision.constraints.search_result import first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.quantize.settings import FOLLOWING_OP_TYPES, WEIGHTED_OP_TYPES, QuantizeSettings
from ndld_flow.records.model_diff import GraphSummary


def intensity(node: ir.Node) -> float:
    """Return multiply-accumulates per element of activations read and written, from the shape of the weight.

    0 without a constant weight, and for a convolution whose output is a single pixel, which is too little work to
    matter.
    """
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.const_value is None:
        return 0.0
    shape = weight.const_value.shape.numpy()
    if is_op(node, "Conv", "ConvTranspose"):
        return _of_convolution(node, shape)
    rows, columns = shape[-2:] if len(shape) > 1 else (shape[0], 1)
    return rows * columns / (rows + columns)


def _of_convolution(node: ir.Node, shape: Sequence[int]) -> float:
    """Return the intensity at one pixel: of the output for Conv, of the input for ConvTranspose."""
    output = node.outputs[0].shape
    if output is not None and len(output) > 2 and all(dim == 1 for dim in tuple(output)[2:]):
        return 0.0
    strides = node.attributes.get("strides")
    area = math.prod(strides.as_ints()) if strides is not None else 1
    groups = node.attributes.get_int("group", 1)
    many, few = shape[0], shape[1] * groups * area
    return math.prod(shape) / (many + few)


MOST_BYTES = 2**31
"""Largest size of the weights: the quantizer holds the model as one protobuf message."""
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class QuantizableNode:
    """A node that can be quantized with the given settings."""

    output: str
    """Name of its first output, which identifies it: names of nodes may be empty or repeated in the source."""
    name: str
    """Name in the prepared model; never empty, unique."""
    op_type: str
    reads: tuple[str, ...]
    """Its float inputs that are not weights."""
    makes: tuple[str, ...]
    """Its float outputs."""
    weights: tuple[str, ...]
    """Its float inputs that are weights."""
    follows: bool
    """True if it is quantized only when all its inputs are."""


@dataclass(frozen=True)
class PreparedModel:
    """A model on disk, ready to be quantized any number of times."""

    path: Path
    inputs: tuple[str, ...]
    """Names of the model's inputs."""
    nodes: tuple[QuantizableNode, ...]
    """Nodes that can be quantized and are not excluded, in the order of execution."""
    layers: int
    """Number of nodes of the operators to quantize, including those below `min_intensity`, without those that
    follow."""
    before: GraphSummary
    """Summary of the source."""
    notes: tuple[str, ...]
    """Notes for the report."""

    def chosen(self, exclude: Collection[str] = ()) -> list[QuantizableNode]:
        """Return the nodes that are quantized if those with these first outputs are excluded."""
        nodes: list[QuantizableNode] = []
        computed: set[str] = set()
        for node in self.nodes:
            if node.output not in exclude and (not node.follows or computed.issuperset(node.reads)):
                nodes.append(node)
                computed.update(node.makes)
        return nodes


def prepare_model(source: Path, target: Path, settings: QuantizeSettings) -> PreparedModel:
    """Write `source` to `target` with local functions inlined, every node named, weights as initializers, shapes
    inferred, and in an opset that has the Q/DQ operators.

    Raises `ModelError` for a model that cannot be read or converted, `RequestError` for unknown names and operators
    and for weights of more than 2 GiB.
    """
    model = load_model(source)
    before = summarize_model(model)
    if before.initializer_bytes > MOST_BYTES:
        raise RequestError(
            f"the model has {number(before.initializer_bytes / 2**30)} GiB of weights, and ONNX Runtime's quantizer "
            "accepts at most 2 GiB. Quantize it with NVIDIA ModelOpt (step quantize, `modelopt`), or halve its weights "
            "with step convert_fp16."
        )
    notes = prepare(model, source)
    excluded = excluded_outputs(model, settings)
    typed = nodes_of_types(model, settings.wanted_op_types, "op_types")
    if settings.op_types:
        notes += [f"op_types: this model has no {op_type}" for op_type, nodes in typed.items() if not nodes]
    notes += _unfolded_notes(model)
    LiftConstantsToInitializersPass(lift_all_constants=False)(model)
    opset = model.opset_imports.get("", 0)
    if opset < settings.least_opset:
        convert_opset(EditedModel(model, source), settings.least_opset)
        notes.append(f"opset {opset} -> {settings.least_opset}, for the Q/DQ operators")
    UniqueNames(model).name_all(model)
    infer_shapes(model)
    save_model(model, target)
    wanted = [node for node in model.graph if is_op(node, *settings.wanted_op_types)]
    nodes = tuple(_quantizable(wanted, excluded, settings))
    layers = sum(not _may_follow(node, settings) for node in wanted)
    inputs = tuple(value.name or "" for value in model.graph.inputs)
    return PreparedModel(target, inputs, nodes, layers, before, tuple(notes))


def excluded_outputs(model: ir.Model, settings: QuantizeSettings) -> set[str]:
    """Return the first outputs of the nodes that the settings exclude."""
    named = nodes_named(model, settings.exclude.nodes, "exclude.nodes")
    typed = nodes_of_types(model, settings.exclude.op_types, "exclude.op_types")
    return {first_output(node) for nodes in (*named.values(), *typed.values()) for node in nodes}


def _unfolded_notes(model: ir.Model) -> list[str]:
    """Return a note on BatchNormalizations that `sanitize` would fold."""
    count = sum(
        is_op(node, "BatchNormalization") and is_op(node.inputs[0].producer() if node.inputs[0] else None, "Conv")
        for node in model.graph
    )
    if not count:
        return []
    return [f"{count} BatchNormalization nodes follow a Conv unfolded: run `sanitize` first for a faster model"]


def _quantizable(
    nodes: Collection[ir.Node], excluded: Collection[str], settings: QuantizeSettings
) -> Iterator[QuantizableNode]:
    for node in nodes:
        described = _described(node, _may_follow(node, settings))
        worth = node.op_type not in WEIGHTED_OP_TYPES or intensity(node) >= settings.least_intensity
        if described is not None and worth and described.output not in excluded:
            yield described


def _may_follow(node: ir.Node, settings: QuantizeSettings) -> bool:
    return not settings.op_types and node.op_type in FOLLOWING_OP_TYPES


def _described(node: ir.Node, follows: bool) -> QuantizableNode | None:
    """Return the node; None if it has no float tensors, or if it follows others and reads a weight."""
    reads = [value for value in node.inputs if value is not None and value.dtype in _FLOATS]
    makes = tuple(value.name or "" for value in node.outputs if value.dtype in _FLOATS)
    weights = tuple(value.name or "" for value in reads if value.const_value is not None)
    tensors = tuple(value.name or "" for value in reads if value.const_value is None)
    if not makes or not tensors or (follows and weights and node.op_type in ("Add", "Concat")):
        return None
    return QuantizableNode(first_output(node), node.name or "", node.op_type, tensors, makes, weights, follows)
