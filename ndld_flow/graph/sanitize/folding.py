"""Constant folding by ONNX Runtime, so that results are the same as at inference.

All foldable nodes of a round are evaluated in one session. A node that fails (no kernel, broken operands) is found by
bisection and kept; it does not prevent the folding of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper

from ndld_flow.graph.sanitize.edits import QUANTIZATION, RANDOM, Array, Edits, dims_of
from ndld_flow.models.sparse_tensors import SparseInitializer

_OTHER_KINDS = frozenset(("Constant", "SequenceMap", "Optional", "OptionalGetElement", "OptionalHasElement"))
# Q/DQ nodes around a weight define its quantization, which folding would lose.
_NEVER = RANDOM | QUANTIZATION | _OTHER_KINDS
_SIZE_FROM_VALUES = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression"))
"""Operators whose output size cannot be inferred but is bounded by that of their inputs."""
_WINDOWS = frozenset(("BlackmanWindow", "HannWindow", "HammingWindow", "MelWeightMatrix", "DFT", "STFT"))
_SIZE_FROM_CONTENTS = _WINDOWS | frozenset(
    ("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "EyeLike", "Resize", "Upsample", "Pad", "Reshape")
)
"""Operators whose output may be arbitrarily large for small operands."""
_NUMPY_TYPES = frozenset(
    getattr(ir.DataType, name)
    for name in [
        "FLOAT",
        "FLOAT16",
        "DOUBLE",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "BOOL",
    ]
)
"""Types that ONNX Runtime returns as numpy arrays without loss."""


def fold_constants(edits: Edits) -> None:
    """Evaluate and replace every node that depends only on constants and is small enough."""
    by_opset: dict[int, list[ir.Node]] = {}
    chosen: set[ir.Value] = set()
    for graph in edits.graphs():
        opset = edits.opset(graph)
        for node in graph:
            if _foldable(edits, node, opset, chosen):
                chosen.update(node.outputs)
                by_opset.setdefault(opset, []).append(node)
    for opset, nodes in by_opset.items():
        results: dict[ir.Value, Array] = {}
        _evaluate(edits, nodes, opset, results)
        _put_results(edits, nodes, results)


def _foldable(edits: Edits, node: ir.Node, opset: int, chosen: set[ir.Value]) -> bool:
    if node.domain != "" or node.op_type in _NEVER or node in edits.unfoldable:
        return False
    if any(a.is_ref() or a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return False
    if not onnx.defs.has(node.op_type, opset, ""):
        return False
    inputs = [value for value in node.inputs if value is not None]
    if not all(value in chosen or _is_operand(edits, value) for value in inputs):
        return False
    outputs = [output for output in node.outputs if output.name]
    return node.op_type in _SIZE_FROM_VALUES or all(
        _bytes_of(edits, node, output) <= edits.size_threshold for output in outputs
    )


def _is_operand(edits: Edits, value: ir.Value) -> bool:
    tensor = edits.constant(value)
    return (
        tensor is not None
        and tensor.dtype in _NUMPY_TYPES
        and tensor.nbytes <= edits.size_threshold
        and not isinstance(tensor, SparseInitializer)
    )


def _bytes_of(edits: Edits, node: ir.Node, output: ir.Value) -> float:
    """Return the inferred size of an output, or else the largest that broadcasting its operands could give."""
    dims = dims_of(output)
    if (
        dims is not None
        and output.dtype is not None
        and output.dtype in _NUMPY_TYPES
        and all(isinstance(d, int) for d in dims)
    ):
        return math.prod(d for d in dims if isinstance(d, int)) * output.dtype.itemsize
    operands = [edits.constant(value) for value in node.inputs if value is not None]
    if node.op_type in _SIZE_FROM_CONTENTS or not operands or any(tensor is None for tensor in operands):
        return math.inf
    return math.prod(max(tensor.size, 1) for tensor in operands if tensor is not None) * 8


def _evaluate(edits: Edits, nodes: Sequence[ir.Node], opset: int, results: dict[ir.Value, Array]) -> None:
    """Fill `results` for the outputs of `nodes`; nodes that fail are marked as unfoldable."""
    if not nodes:
        return
    failed = edits.unfoldable
    ready = [
        node
        for node in nodes
        if not any(v is not None and v.producer() in failed and edits.constant(v) is None for v in node.inputs)
    ]
    edits.unfoldable.update(set(nodes) - set(ready))
    try:
        results.update(_run(edits, ready, opset, results))
    except Exception as error:  # onnxruntime raises many unrelated classes, none of them public
        if len(ready) == 1:
            edits.unfoldable.add(ready[0])
            edits.done[f"left unfolded: {ready[0].op_type} ({type(error).__name__})"] += 1
            return
        half = len(ready) // 2
        _evaluate(edits, ready[:half], opset, results)
        _evaluate(edits, ready[half:], opset, results)


def _run(
    edits: Edits, nodes: Sequence[ir.Node], opset: int, known: dict[ir.Value, Array]
) -> Iterator[tuple[ir.Value, Array]]:
    if not nodes:
        return iter(())
    names: dict[ir.Value, str] = {}
    protos = [_renamed(node, names) for node in nodes]
    computed = {value for node in nodes for value in node.outputs}
    operands = [(name, _operand(edits, value, known, name)) for value, name in names.items() if value not in computed]
    inside = set(nodes)
    wanted = [
        value
        for value in names
        if value in computed and (value.is_graph_output() or any(use.node not in inside for use in value.uses()))
    ]
    graph = onnx.helper.make_graph(
        protos, "fold", [], [onnx.ValueInfoProto(name=names[v]) for v in wanted], [proto for _, proto in operands]
    )
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", opset)])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    arrays = session.run([names[value] for value in wanted], {})
    return iter(
        [(v, a) for v, a in zip(wanted, arrays, strict=True) if isinstance(a, np.ndarray) and a.dtype != object]
    )


def _renamed(node: ir.Node, names: dict[ir.Value, str]) -> onnx.NodeProto:
    """Return a node with short unique tensor names: nodes come from scopes whose names may clash."""
    proto = ir.serde.serialize_node(node)
    for values, fields in ((node.inputs, proto.input), (node.outputs, proto.output)):
        del fields[:]
        for value in values:
            fields.append("" if value is None or not value.name else names.setdefault(value, f"v{len(names)}"))
    return proto


def _operand(edits: Edits, value: ir.Value, known: dict[ir.Value, Array], name: str) -> onnx.TensorProto:
    if value in known:
        return numpy_helper.from_array(known[value], name)
    tensor = edits.constant(value)
    assert tensor is not None
    return numpy_helper.from_array(np.asarray(tensor.numpy()), name)


def _put_results(edits: Edits, nodes: Sequence[ir.Node], results: dict[ir.Value, Array]) -> None:
    for node in reversed(nodes):
        for value in node.outputs:
            if value in results:
                edits.set_constant(value, ir.Tensor(results[value]))
        if node.graph is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs):
            edits.remove(node)
        edits.done["folded"] += node.graph is None
