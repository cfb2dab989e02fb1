"""The door of model files: every other module reads, checks, summarizes and writes them by these functions.

::

    load_model(path)                        # with all weights; those in external data stay on disk throughout
    load_structure(path)                    # the same, where weights may be missing
    read_proto(path)                        # as written, before anything is checked or repaired
    model_inputs(path), model_outputs(path)
    check_model(path)
    save_model(model, path)
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError, Message

from ndld_flow.base.errors import ModelError, OutputsError
from ndld_flow.base.quantities import count
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.models.element_types import dtype_name, graphs_of, held_tensor, nodes_in, subgraphs_of
from ndld_flow.models.external_data import externalized, place_existing_tensors, place_tensors
from ndld_flow.models.external_files import open_regular, refuse_larger
from ndld_flow.models.input_uses import input_uses, known_texts
from ndld_flow.models.lazy_tensors import (
    SparseInitializer,
    extract_sparse,
    restore_sparse,
    sparse_placeholders,
    write_sparse,
)
from ndld_flow.models.nodes import inner_graphs, op_name
from ndld_flow.models.tensor_statistics import tensor_bytes
from ndld_flow.models.tensors import UNNAMED_DIM, InputUses, TensorSpec
from ndld_flow.records.model_diff import GraphChange, GraphSummary

MAX_IR_VERSION = 13
"""Newest IR version that ONNX Runtime 1.31 loads; onnx 1.23 writes 14 by default."""
MAX_OPSET = 26
"""Newest version of the default domain that ONNX Runtime 1.31 loads."""
OLDEST_OPSET = 7
"""Oldest version of the default domain that ONNX Runtime guarantees to run."""
_MIN_IR_VERSION = 3
"""Older versions have no opset imports."""
DEFAULT_DOMAIN = "ai.onnx"
"""The other name of ONNX's domain, `""`."""
_GRAPH_NAME = "graph"
_REPAIRS = "ndld_flow.repairs"
_MAP_TYPES = "ndld_flow.map_types"

MOST_NODES = 1_000_000
"""Maximum number of nodes with all local functions inlined, as in runtimes: a few functions that call each other twice
could exceed any memory."""
_MOST_OPSET = 2**31 - 1
"""onnx stores versions in 32 bits."""

_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""

logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # the checker rejects what it warns of


def load_model(path: Path) -> ir.Model:
    """Read a model; external data stays on disk and is mapped when a value is needed.

    A missing graph name or opset import is added; `repairs_of` returns such repairs.

    Raises `ModelError` if the file is missing, empty, truncated or not ONNX, and if its external data is outside the
    model's folder; `MissingDataError` if weights were removed, or their file is missing or too short.
    """
    return _model_of(read_proto(path), path)


def is_of_maps(kind: onnx.TypeProto) -> bool:
    """Return whether a type is a map, or a sequence of maps, which ZipMap returns: onnx_ir has no such types."""
    kinds: tuple[onnx.TypeProto, ...] = (kind, kind.sequence_type.elem_type)
    return any(each.HasField("map_type") for each in kinds)


def load_structure(path: Path) -> ir.Model:
    """Read a model for an operation that needs no weights: a tensor without data is a `MissingTensor`.

    Raises `ModelError` as `load_model` does for anything else.
    """
    return _model_of(read_proto(path), path, place_existing_tensors)


def _without_nodes(proto: onnx.ModelProto, path: Path, inputs: Sequence[onnx.ValueInfoProto] = ()) -> ir.Model:
    """Return the model without nodes and outputs; `inputs` are further values that it takes."""
    proto.graph.input.extend(inputs)
    for rest in (proto.graph.node, proto.graph.value_info, proto.graph.output, proto.functions):
        del rest[:]
    return _model_of(proto, path)


def _model_of(proto: onnx.ModelProto, path: Path, place: Callable[[ir.Model, Path], None] = place_tensors) -> ir.Model:
    _check_versions(proto, path)
    _check_functions(proto, path)
    _check_external(proto, path)
    unname_dims(proto)
    map_types: dict[str, onnx.TypeProto] = {}
    for value in (*proto.graph.output, *proto.graph.value_info):
        if is_of_maps(value.type):
            map_types[value.name] = onnx.TypeProto.FromString(value.type.SerializeToString())
            value.ClearField("type")
    try:
        sparse = extract_sparse(proto)
        model = ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, LookupError, TypeError, NotImplementedError, RecursionError) as error:
        raise ModelError(f"{path}: the model is broken or uses unsupported features: {innermost(error)}") from None
    restore_sparse(model, sparse)
    _check_nodes(all_graphs(model), path)
    place(model, path)
    # The default domain by its empty name instead of `ai.onnx`, as onnx_ir has it in nodes.
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if DEFAULT_DOMAIN in imports:
            imports.setdefault("", imports.pop(DEFAULT_DOMAIN))
    unnamed = [] if model.graph.name else [f"the graph had no name; it is {_GRAPH_NAME!r} now"]
    for graph in model.graphs():
        graph.name = graph.name or _GRAPH_NAME  # ONNX requires one
    model.meta[_MAP_TYPES] = map_types
    model.meta[_REPAIRS] = [*unnamed, *_import_domains(model)]
    return model


def _check_versions(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `ModelError` for opset versions that no library can represent."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        for opset in imports:
            if not 0 <= opset.version <= _MOST_OPSET:
                raise ModelError(
                    f"{path}: it imports version {opset.version} of the operators of "
                    f"{short_name(opset.domain or 'ai.onnx')!r}, which is impossible. The model is damaged."
                )


def _check_nodes(graphs: Iterable[ir.Graph], path: Path) -> None:
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


def _check_external(proto: onnx.ModelProto, path: Path) -> None:
    """Raise `ModelError` for external data at an offset, or with a length, that is no number of bytes."""
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not (entry.value.isascii() and entry.value.isdecimal()):
                raise ModelError(
                    f"{path}: the external data of {short_name(tensor.name)!r} has the {entry.key} "
                    f"{short_name(entry.value, 30)}. The model is damaged."
                )


def _check_functions(proto: onnx.ModelProto, path: Path) -> None:
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


def unname_dims(proto: onnx.ModelProto) -> bool:
    """Clear dimensions named `?` or with the size -1 in place, and return whether there were any.

    Paddle's exporters write these for every dynamic dimension, also for those of different sizes.
    """
    declared = [dim for home in (proto.graph, *proto.functions) for graph in graphs_of(home) for dim in dims_of(graph)]
    dims = [dim for dim in declared if dim.dim_param == UNNAMED_DIM or dim.dim_value < 0]
    for dim in dims:
        dim.ClearField("dim_param")
        dim.ClearField("dim_value")
    return bool(dims)


def dims_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dimensions that a graph or a function declares for its tensors, without those of subgraphs."""
    declared = [graph.value_info]
    if isinstance(graph, onnx.GraphProto):
        declared += [graph.input, graph.output]
    for value in (value for values in declared for value in values):
        yield from value.type.tensor_type.shape.dim


def _import_domains(model: ir.Model) -> Iterator[str]:
    """Import the domains of a model's nodes that it does not import, and yield a line for each.

    The versions are those that ONNX Runtime assumes. It does not load a model without any import, whose IR version then
    decides.
    """
    named = bool(model.opset_imports)
    homes: tuple[ir.Model | ir.Function, ...] = (model, *model.functions.values())
    for home in homes:
        used = dict.fromkeys(node.domain for node in home.graph.all_nodes())
        for domain in used.keys() - home.opset_imports.keys():
            version = model.opset_imports.get(domain) or assumed_version(domain, named, model.ir_version or 0)
            home.opset_imports[domain] = version
            where = f"function {home.name!r}" if isinstance(home, ir.Function) else "the model"
            yield (
                f"{where} does not import the operators of {domain or DEFAULT_DOMAIN!r}, which its nodes use: version "
                f"{version} is imported now, and `set_opset` of `edit` imports another one"
            )


def assumed_version(domain: str, has_imports: bool, ir_version: int) -> int:
    """Return the version of a domain that a model uses and does not import."""
    if domain not in ("", DEFAULT_DOMAIN):
        return 1
    if has_imports:
        return MAX_OPSET
    return max((row[2] for row in onnx.helper.VERSION_TABLE if row[1] <= ir_version), default=1)


def repairs_of(model: ir.Model) -> list[str]:
    """Return the repairs of a model that `load_model` read, a line each."""
    return list(model.meta.get(_REPAIRS, ()))


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model as written, without external data. Raises `ModelError` as `load_model` does for the file."""
    with open_regular(path) as file:
        refuse_larger(file, path)
        try:
            data = file.read()
        except OSError as error:
            raise ModelError(f"{path}: the model cannot be read ({error.strerror}).") from None
    if not data:
        raise ModelError(f"{path}: the model file is empty. Export or download it again.")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError(
            f"{path}: this is not an ONNX model, or it is truncated. Export or download it again."
        ) from None
    # Protobuf parses many byte strings as an empty message; a model has a graph and a version.
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{path}: this is not an ONNX model: it has no graph or no IR version.")
    return proto


def save_model(model: ir.Model, path: Path) -> None:
    """Write a model to `path`, and its weights to `<name>.data` next to it if it has external data or more than
    1.5 GiB. Weights on disk are copied by the kernel, not read.

    Raises `OutputsError` if the files cannot be written, `ModelError` if the model cannot be serialized.
    """
    proto = _proto_of(model, path, externalized(model, path.with_name(f"{path.name}.data")))
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(proto.SerializeToString())
        temporary.replace(path)
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{path}: the model is too large for one protobuf ({error}).") from None
    except OSError as error:
        raise OutputsError(
            f"{path}: cannot be written ({error.strerror}). Free some space or choose another outputs folder."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def rename_external_data(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """Write a model to `target` with other names for its data files, old name -> new name, and without these files."""
    proto = read_proto(source)
    for tensor in _tensors_in(proto):
        for entry in tensor.external_data:
            entry.value = names[entry.value] if entry.key == "location" else entry.value
    target.write_bytes(proto.SerializeToString())


def _tensors_in(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a model, those of attributes, functions and training included."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if isinstance(value, Message) else value:
                yield from [each] if isinstance(each, onnx.TensorProto) else _tensors_in(each)


def save_changed(changed: bytes, source: Path, target: Path) -> None:
    """Write a changed model to `target`, with a copy of its external data, which are in the folder of `source`."""
    save_model(_model_of(onnx.ModelProto.FromString(changed), source), target)


def proto_with_external_data(model: ir.Model, path: Path) -> onnx.ModelProto:
    """Serialize a changed model whose external data stay where its source, `path`, has them.

    Raises `ModelError` if it cannot be serialized.
    """
    return _proto_of(model, path, contextlib.nullcontext())


def _proto_of(model: ir.Model, path: Path, weights: contextlib.AbstractContextManager[None]) -> onnx.ModelProto:
    """Serialize a model within the context `weights`; the model is restored afterwards."""
    sparse = sparse_placeholders(model)
    kept_ir_version = model.ir_version
    model.ir_version = min(max(model.ir_version or 0, _MIN_IR_VERSION), MAX_IR_VERSION)
    try:
        with weights:
            for value, (_, marker) in sparse.items():
                value.const_value = marker
            proto = ir.serde.serialize_model(model)
    except (ir.serde.SerdeError, ValueError) as error:
        raise ModelError(f"{path}: the model cannot be written: {innermost(error)}") from None
    finally:
        model.ir_version = kept_ir_version
        for value, (tensor, _) in sparse.items():
            value.const_value = tensor
    write_sparse(proto, [tensor for tensor, _ in sparse.values()])
    # The checker rejects types without a shape. Inference finds them again, but not behind plugins.
    for each in graphs_of(proto.graph):
        if any(map(lacks_shape, each.value_info)):
            nodes = [node for node in each.node if not node.domain and onnx.defs.has(node.op_type)]
            standard = {name for node in nodes for name in node.output}
            kept = [value for value in each.value_info if value.name not in standard or not lacks_shape(value)]
            del each.value_info[:]
            each.value_info.extend(kept)
    map_types = model.meta.get(_MAP_TYPES, {})
    for output in proto.graph.output:
        if output.name in map_types and not output.HasField("type"):
            output.type.CopyFrom(map_types[output.name])
    return proto


def lacks_shape(value: onnx.ValueInfoProto) -> bool:
    """Return whether a tensor is declared without a shape, so that its rank is unknown."""
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def check_model(path: Path, full_check: bool = False) -> None:
    """Run the ONNX checker on a file; `full_check` adds strict shape inference.

    Raises `ModelError` with the checker's message, which names the node.
    """
    try:
        onnx.checker.check_model(os.fspath(path), full_check=full_check)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{path}: the ONNX checker rejects it: {one_paragraph(error)}") from None
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"{path}: shape inference rejects it: {one_paragraph(error)}") from None
    except (ValueError, RuntimeError, DecodeError, OSError) as error:
        raise ModelError(f"{path}: it cannot be checked: {one_paragraph(error)}") from None


@contextlib.contextmanager
def blaming_model(path: Path) -> Iterator[None]:
    """Blame the model if code in the block fails on it: raise the checker's `ModelError` if the model has a mistake."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        check_model(path, full_check=True)
        raise


def summarize_model(model: ir.Model) -> GraphSummary:
    """Summarize a model in numbers; nodes of subgraphs and of local functions count once each."""
    types = Counter(op_name(node) for graph in all_graphs(model) for node in graph)
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    tensors = [*(value.const_value for value in values if value.const_value is not None), *_constants(model)]
    return GraphSummary(
        nodes_by_type=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
        parameter_count=sum(t.stored_count if isinstance(t, SparseInitializer) else t.size for t in tensors),
        initializer_bytes=sum(t.stored_bytes if isinstance(t, SparseInitializer) else tensor_bytes(t) for t in tensors),
        opset=model.opset_imports.get("", 0),
        ir_version=model.ir_version or 0,
    )


def _constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield tensors in Constant nodes: exporters put weights there too."""
    for graph in all_graphs(model):
        for node in graph:
            tensor = node.attributes.get("value") if node.op_type == "Constant" else None
            if tensor is not None and not tensor.is_ref() and tensor.type == ir.AttributeType.TENSOR:
                yield held_tensor(tensor)


def describe_change(before: Path, after: Path) -> GraphChange:
    """Summarize two model files. Raises `ModelError` if one of them cannot be read."""
    counted = [_summarize_file(path, path.stat().st_mtime_ns if path.is_file() else 0) for path in (before, after)]
    return GraphChange(before=counted[0], after=counted[1])


@lru_cache(maxsize=128)
def _summarize_file(path: Path, _modified_ns: int) -> GraphSummary:
    """Summarize a model file, once for all points of a sweep that start from it."""
    return summarize_model(load_model(path))


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, local functions' bodies, and every subgraph in them."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield graph
        yield from inner_graphs(graph)


def innermost(error: BaseException) -> str:
    """Return the message of the first cause of an error in one paragraph."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_paragraph(error)


def model_inputs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs that a model declares and has no initializer for; weights are not read.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    proto = read_proto(path)
    uses, texts = input_uses(proto), known_texts(proto.graph)
    graph = _without_nodes(proto, path).graph
    declared = (_declared(value) for value in graph.inputs if value.name not in graph.initializers)
    return tuple(
        replace(spec, uses=uses.get(spec.name, InputUses()), known_texts=texts.get(spec.name, ())) for spec in declared
    )


def model_outputs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the outputs that a model declares; weights are not read.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    proto = read_proto(path)
    outputs = list(proto.graph.output)
    for output in outputs:
        if is_of_maps(output.type):  # it becomes an input, which has a type
            output.ClearField("type")
    del proto.graph.initializer[:], proto.graph.sparse_initializer[:], proto.graph.input[:]
    model = _without_nodes(proto, path, outputs)
    return tuple(_declared(value) for value in model.graph.inputs)


def _declared(value: ir.Value) -> TensorSpec:
    if not isinstance(value.type, ir.TensorType):
        return TensorSpec(str(value.name), "" if value.type is None else str(value.type), None)
    dims = None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    # -1, which old exporters write, is a dynamic dimension as in ONNX Runtime.
    shape = None if dims is None else tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in dims)
    return TensorSpec(str(value.name), dtype_name(value.type.dtype), shape)


NEWEST_OPSET = onnx.defs.onnx_opset_version()
"""Newest version of the default domain that the installed onnx knows."""
_LEAST_IR_VERSION = 8
"""Earlier versions have no local functions, and before 4 every initializer is an input. It allows any opset."""
CONTRIB_DOMAIN = "com.microsoft"


def make_model(opset: int, contrib: bool = False) -> ir.Model:
    """Return a model without nodes, inputs and outputs; `contrib` imports ONNX Runtime's own operators.

    Raises `ModelError` for an unknown opset.
    """
    reject_unknown_opset(opset)
    imports = {"": opset} | ({CONTRIB_DOMAIN: 1} if contrib else {})
    graph = ir.Graph([], [], nodes=[], opset_imports=imports, name="graph")
    return ir.Model(graph, ir_version=max(_LEAST_IR_VERSION, oldest_ir_version(opset)), producer_name="ndld_flow")


def reject_unknown_opset(opset: int) -> None:
    """Raise `ModelError` for an unknown opset."""
    if not 1 <= opset <= NEWEST_OPSET:
        raise ModelError(f"there is no opset {opset}; the installed onnx has 1 to {NEWEST_OPSET}")


def oldest_ir_version(opset: int) -> int:
    """Return the IR version that was introduced with an opset, or the newest that ONNX Runtime loads if it is older."""
    versions = [row[1] for row in onnx.helper.VERSION_TABLE if row[2] >= opset]
    return min(*versions, MAX_IR_VERSION)
