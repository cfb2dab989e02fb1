"""Constant folding by ONNX Runtime, so that results are the same as at inference.

All foldable nodes of a round are evaluated in one session. A node that fails (no kernel, broken operands) is found by
bisection and kept; it does not prevent the folding of others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper

from ndld_flow.base.quantities import size as size_text
from ndld_flow.base.text import first_of, short_name
from ndld_flow.graph.sanitize.edits import QUANTIZATION, RANDOM, Array, Edits, dims_of
from ndld_flow.models.element_types import GRAPHS
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import is_used

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
_FOREIGN_TYPES = frozenset((ir.DataType.UNDEFINED, ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128))
_TYPES_OF_REFERENCE = frozenset(
    dtype for dtype in ir.DataType if dtype.name.startswith(("BFLOAT16", "FLOAT8", "FLOAT6", "FLOAT4", "INT4", "UINT4"))
)
"""Types of ml_dtypes, which ONNX Runtime does not return as arrays and has few kernels for: ONNX's reference computes
with them."""
_NAMED = 3
LEFT_UNFOLDED = "not folded: "


def fold_constants(edits: Edits) -> None:
    """Evaluate and replace every node that depends only on constants, is small enough, and does not grow the model."""
    by_opset: dict[int, list[ir.Node]] = {}
    chosen: set[ir.Value] = set()
    for graph in edits.graphs():
        opset = edits.opset(graph)
        for node in graph:
            if _foldable(edits, node, opset, chosen):
                if not _of_reference(edits, node):  # its readers are folded in the next pass
                    chosen.update(node.outputs)
                by_opset.setdefault(opset, []).append(node)
    edits.left.clear()
    for opset, nodes in by_opset.items():
        results: dict[ir.Value, Array] = {}
        folded = _paying(edits, nodes)
        needed = _with_producers(folded, nodes)
        by_reference = [node for node in needed if _of_reference(edits, node)]
        _evaluate(edits, [node for node in needed if node not in by_reference], opset, results)
        for node in by_reference:
            _evaluate(edits, [node], opset, results)
        _put_results(edits, folded, results)


def left_unfolded(edits: Edits) -> list[str]:
    """Return a sentence on the nodes that were not folded because the model would have grown; none if all were."""
    left = sorted(((size, node) for node, size in edits.left.items() if node.graph is not None), key=lambda e: -e[0])
    if not left:
        return []
    names = first_of([short_name(f"{node.op_type} {node.name}") for _, node in left], _NAMED)
    added = size_text(sum(size for size, _ in left))
    return [f"{LEFT_UNFOLDED}{names}: they would add {added} (`fold_size_threshold` folds them)"]


def _paying(edits: Edits, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes whose results add no more bytes than they make superfluous, or few.

    Nodes are judged together with those that they read or share a large constant with: a Cast may double what the
    Transpose behind it halves again. While a group adds too much, its largest result is left to be computed.
    """
    kept = dict.fromkeys(nodes)
    while True:
        dropped = set()
        for group in _groups(edits, kept):
            added, freed = _results(edits, group, kept), _freed(edits, group)
            if not edits.pays(sum(added.values()), freed):
                largest = max(added, key=added.__getitem__)
                dropped.add(largest)
                edits.left[largest] = int(added[largest])
        if not dropped:
            break
        for node in dropped:
            del kept[node]
    return list(kept)


def _with_producers(chosen: Sequence[ir.Node], nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the chosen nodes and those among `nodes` that compute what they read, in order."""
    needed = set(chosen)
    for node in reversed(nodes):
        if node in needed:
            needed.update(producer for value in node.inputs if value is not None and (producer := value.producer()))
    return [node for node in nodes if node in needed]


def _groups(edits: Edits, nodes: Mapping[ir.Node, None]) -> list[list[ir.Node]]:
    """Return the nodes in groups that share no result and no large constant."""
    root = {node: node for node in nodes}

    def find(node: ir.Node) -> ir.Node:
        while root[node] is not node:
            root[node] = node = root[root[node]]
        return node

    readers: dict[ir.Value, ir.Node] = {}
    for node in nodes:
        for value in filter(None, node.inputs):
            producer, tensor = value.producer(), edits.constant(value)
            if tensor is not None and not edits.pays(tensor.nbytes, 0):
                producer = readers.setdefault(value, node)
            if producer in root:
                root[find(node)] = find(producer)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _results(edits: Edits, group: Iterable[ir.Node], nodes: Mapping[ir.Node, None]) -> dict[ir.Node, float]:
    """Return node -> bytes of its outputs that other nodes than the folded ones read."""
    results = {}
    for node in group:
        read = [v for v in node.outputs if v.is_graph_output() or any(use.node not in nodes for use in v.uses())]
        if read:
            results[node] = sum(_bytes_of(edits, node, value) for value in read)
    return results


def _freed(edits: Edits, group: Iterable[ir.Node]) -> int:
    """Return the bytes of the constants that only these nodes read."""
    inside = set(group)
    constants = {value: edits.constant(value) for node in inside for value in node.inputs if value is not None}
    return sum(
        tensor.nbytes
        for value, tensor in constants.items()
        if tensor is not None and not value.is_graph_output() and all(use.node in inside for use in value.uses())
    )


def _of_reference(edits: Edits, node: ir.Node) -> bool:
    """Return whether a node reads or computes a type that only ONNX's reference has as arrays."""
    tensors = [edits.constant(value) for value in node.inputs]
    types = {*(tensor.dtype for tensor in tensors if tensor is not None), *(value.dtype for value in node.outputs)}
    return not types.isdisjoint(_TYPES_OF_REFERENCE)


def _foldable(edits: Edits, node: ir.Node, opset: int, chosen: set[ir.Value]) -> bool:
    if node.domain != "" or node.op_type in _NEVER or node in edits.unfoldable:
        return False
    if any(a.is_ref() or a.type in GRAPHS for a in node.attributes.values()):
        return False
    if not onnx.defs.has(node.op_type, opset, ""):
        return False
    inputs = [value for value in node.inputs if value is not None]
    if node.op_type in _SIZE_FROM_VALUES:  # operands that are computed now bound its size in the next pass
        return all(_is_operand(edits, value) for value in inputs)
    if not all(value in chosen or _is_operand(edits, value) for value in inputs):
        return False
    return all(_bytes_of(edits, node, output) <= edits.size_threshold for output in node.outputs if output.name)


def _is_operand(edits: Edits, value: ir.Value) -> bool:
    tensor = edits.constant(value)
    return (
        tensor is not None
        and tensor.dtype not in _FOREIGN_TYPES
        and tensor.nbytes <= edits.size_threshold
        and not isinstance(tensor, SparseInitializer)
    )


def _bytes_of(edits: Edits, node: ir.Node, output: ir.Value) -> float:
    """Return the inferred size of an output, or else the largest that broadcasting its operands could give."""
    dims = dims_of(output)
    if (
        dims is not None
        and output.dtype is not None
        and output.dtype not in _FOREIGN_TYPES
        and all(isinstance(d, int) for d in dims)
    ):
        return math.ceil(math.prod(d for d in dims if isinstance(d, int)) * output.dtype.itemsize)
    operands = [edits.constant(value) for value in node.inputs if value is not None]
    if node.op_type in _SIZE_FROM_CONTENTS or not operands or any(tensor is None for tensor in operands):
        return math.inf
    if node.op_type in _SIZE_FROM_VALUES:
        return sum(tensor.nbytes + 8 * tensor.size * len(tensor.shape) for tensor in operands if tensor is not None)
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
        run = _run_reference if len(ready) == 1 and _of_reference(edits, ready[0]) else _run
        results.update(run(edits, ready, opset, results))
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
        if value in computed
        and (value.is_graph_output() or any(use.node not in inside or use.node in edits.left for use in value.uses()))
    ]
    model = _model(protos, [names[v] for v in wanted], [proto for _, proto in operands], opset)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    arrays = session.run([names[value] for value in wanted], {})
    return iter(
        [(v, a) for v, a in zip(wanted, arrays, strict=True) if isinstance(a, np.ndarray) and a.dtype != object]
    )


def _run_reference(
    edits: Edits, nodes: Sequence[ir.Node], opset: int, known: dict[ir.Value, Array]
) -> Iterator[tuple[ir.Value, Array]]:
    """Evaluate one node by ONNX's reference."""
    from onnx.reference import ReferenceEvaluator  # takes half a second to import, and few models need it

    names: dict[ir.Value, str] = {}
    proto = _renamed(nodes[0], names)
    outputs = [value for value in nodes[0].outputs if value in names]
    operands = [_operand(edits, value, known, name) for value, name in names.items() if value not in outputs]
    model = _model([proto], [names[value] for value in outputs], operands, opset)
    arrays = ReferenceEvaluator(model).run(None, {})
    tensors = {value: np.asarray(array) for value, array in zip(outputs, arrays, strict=True)}
    for value, array in tensors.items():
        if value.dtype is not None and ir.Tensor(array).dtype != value.dtype:
            raise TypeError(f"the reference computes {array.dtype} for {value.dtype}")
    return iter(tensors.items())


def _model(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], operands: Sequence[onnx.TensorProto], opset: int
) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(nodes, "fold", [], [onnx.ValueInfoProto(name=name) for name in outputs], operands)
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", opset)])


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
        if node.graph is not None and not any(map(is_used, node.outputs)):
            edits.remove(node)
        edits.done["folded"] += node.graph is None
