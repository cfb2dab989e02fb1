"""Checks of a model as it is read: versions, nodes, local functions and tensors that libraries cannot handle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import MissingDataError, ModelError
from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import nodes_in, subgraphs_of
from ndld_flow.models.sparse_tensors import SparseInitializer, refuse_external

MOST_NODES = 1_000_000
"""Maximum number of nodes with all local functions inlined, as in runtimes: a few functions that call each other twice
could exceed any memory."""
_MOST_OPSET = 2**31 - 1
"""onnx stores versions in 32 bits."""

_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_versions(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `ModelError` for opset versions that no library can represent."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        for opset in imports:
            if not 0 <= opset.version <= _MOST_OPSET:
                raise ModelError(
                    f"{path}: it imports version {opset.version} of the operators of "
                    f"{short_name(opset.domain or 'ai.onnx')!r}, which is impossible. The model is damaged."
                )


def check_nodes(graphs: Iterable[ir.Graph], path: Path) -> None:
    """Raise `ModelError` for a node without outputs, as every operator has one, and for nodes in a cycle."""
    for graph in graphs:
        seen: set[ir.Node] = set()
        is_sorted = True
        for node in graph:
            if not node.outputs:
                name = short_name(node.name or "")
                raise ModelError(
                    f"{path}: node {name!r} ({short_name(node.op_type)}) has no outputs. The model is damaged."
                )
            is_sorted = is_sorted and all(producer in seen for producer in _producers(node, graph))
            seen.add(node)
        if is_sorted:
            continue
        try:
            TopologicalSorter({node: _producers(node, graph) for node in graph}).prepare()
        except CycleError as error:
            names = " -> ".join(short_name(node.name or node.op_type, 60) for node in error.args[1])
            raise ModelError(
                f"{path}: nodes read each other's outputs in a cycle: {names}. The model is damaged."
            ) from None


def _producers(node: ir.Node, graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes of a graph whose outputs a node, or a body in it, reads."""
    bodies = list(subgraphs_of(node))
    readers = [node, *(inner for body in bodies for inner in ir.traversal.RecursiveGraphIterator(body))]
    reads = [value for reader in readers for value in reader.inputs]
    reads += [value for body in bodies for value in body.outputs]
    producers = (value.producer() for value in reads if value is not None)
    return {producer for producer in producers if producer is not None and producer.graph is graph}


def check_external(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `ModelError` for external data at an offset, or with a length, that is no number of bytes."""
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not (entry.value.isascii() and entry.value.isdecimal()):
                raise ModelError(
                    f"{path}: the external data of {short_name(tensor.name)!r} has the {entry.key} "
                    f"{short_name(entry.value, 30)}. The model is damaged."
                )


def check_functions(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `ModelError` for recursive local functions, and for more than `MOST_NODES` nodes after inlining."""
    if not proto.functions:
        return
    bodies: dict[_Key, list[onnx.NodeProto]] = {
        (function.domain, function.name, function.overload): nodes_in(function) for function in proto.functions
    }
    calls = {key: {_key(node) for node in nodes} & bodies.keys() for key, nodes in bodies.items()}
    sizes: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = _inlined(bodies[key], sizes)
    except CycleError as error:
        cycle = " -> ".join(short_name(name, 60) for _, name, _ in error.args[1])
        raise ModelError(
            f"{path}: its local functions call each other in a cycle: {cycle}. ONNX has no recursion: fix the export."
        ) from None
    nodes = _inlined(nodes_in(proto.graph), sizes)
    if nodes > MOST_NODES:
        raise ModelError(
            f"{path}: its local functions call each other so often that the model has {count(nodes)} nodes; "
            f"the limit is {count(MOST_NODES)}."
        )


def _inlined(nodes: Iterable[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    return sum(sizes.get(_key(node), 1) for node in nodes)


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


_COPIED_BYTES = 2**16
"""Access to raw data copies them: the length of more than this is derived from the size of the whole message."""
_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""Field of elements that are not raw data; other types use `int32_data`."""
_ADVICE = "The model is damaged: export or download it again."
_REMOVED = "its data were removed"


def check_tensor(path: Path, tensor: ir.TensorProtocol) -> None:
    """Raise `ModelError` for a tensor without a type, with a negative dimension, or of another size than declared.

    Raises `MissingDataError` for one without any data.
    """
    where = f"{path}: tensor {short_name(tensor.name or '')!r}"
    _element_count(where, tensor.dtype, tuple(tensor.shape.numpy()))
    if isinstance(tensor, SparseInitializer):
        refuse_external(tensor.proto)
        for proto in (tensor.proto.values, tensor.proto.indices):
            _check_proto(where, proto)
    elif isinstance(tensor, ir.serde.TensorProtoTensor):
        _check_proto(where, tensor.raw)
    elif isinstance(tensor, ir.StringTensor) and len(tensor.raw) != tensor.size:
        raise ModelError(f"{where} has {len(tensor.raw)} strings, but its shape requires {tensor.size}. {_ADVICE}")


def _element_count(where: str, dtype: ir.DataType, dims: tuple[int, ...]) -> int:
    if dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"{where} has no element type. {_ADVICE}")
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{where} has a negative dimension. {_ADVICE}")
    return math.prod(dims)


def _check_proto(where: str, proto: onnx.TensorProto) -> None:
    dtype = ir.DataType(proto.data_type)
    count = _element_count(where, dtype, tuple(proto.dims))
    if proto.HasField("raw_data"):
        expected, unit = -(-count * dtype.bitwidth // 8), "bytes"
        held = _raw_length(proto, expected)
    else:
        each = 8 // dtype.bitwidth if dtype.bitwidth in (2, 4) else 1
        expected, unit = -(-count // each) * (2 if dtype.name.startswith("COMPLEX") else 1), "numbers"
        held = len(getattr(proto, _FIELDS.get(dtype, "int32_data")))
    if held == 0 != expected:
        error = MissingDataError(
            f"{where}: {_REMOVED}. Use the model that still has its weights: only `inspect`, `draw` and "
            "`diff` need none."
        )
        error.reason = _REMOVED
        raise error
    if held != expected:
        raise ModelError(f"{where} has {held} {unit}, but its type and shape require {expected}. {_ADVICE}")


def _raw_length(proto: onnx.TensorProto, expected: int) -> int:
    """Return the bytes of the raw data; if they are many, the excess may only be estimated."""
    whole = proto.ByteSize()
    if expected <= whole <= expected + _COPIED_BYTES and expected > _COPIED_BYTES:
        return expected
    return whole if whole > 2 * _COPIED_BYTES else len(proto.raw_data)
