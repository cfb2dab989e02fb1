"""Types and shapes behind operators that onnx does not know: those of ONNX Runtime, and plugins of TensorRT.

ONNX Runtime infers them when it loads a model, before it looks for kernels or reads weights: the nodes' outputs become
outputs of a copy without weights, which is loaded and never initialized. `onnxruntime.tools.symbolic_shape_infer` is
not used: it fails on half of the models of other projects, and then writes files into the current directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from ndld_flow.machine.operator_libraries import register_libraries
from ndld_flow.models.element_types import REGISTERED, bodies_of, dtype_of, nodes_in

_MOST_ROUNDS = 8
"""Maximum number of times that onnx and ONNX Runtime continue from each other's results."""
_IR_VERSION = 10
"""The oldest version with everything that the copy contains, since any ONNX Runtime loads it."""
_OPSET = 13
"""Version of the default domain in models that do not import it, for `Shape`."""
_PREFIX = "ndld_rank_of_"
_HIDDEN = "ndld_flow.hidden"
"""Domain of nodes of ONNX's own domain whose shapes ONNX Runtime infers, as onnx's rule for them is wrong."""

Types = dict[str, onnx.TypeProto]
"""Name of a tensor -> its type."""


def infer_foreign(model: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Return the inferred model with the types and shapes behind foreign operators too.

    `infer` is onnx's inference, which continues from the recorded types of the operators that it does not know.
    """
    functions = {(function.domain, function.name) for function in model.functions}
    if not any(_is_foreign(node, functions) for node in nodes_in(model.graph)):
        return model
    for _ in range(_MOST_ROUNDS):
        if not _learn(model, model.graph, _Scope(), functions):
            break
        model = infer(model)
    return model


def can_infer(node: ir.Node) -> bool:
    """Return whether onnx or ONNX Runtime may infer a node's outputs, so that recorded shapes can be discarded."""
    op_type = str(node.op_type)  # a user's rule may set anything
    return node.domain == "com.microsoft" or onnx.defs.has(op_type, node.domain) or op_type in REGISTERED


def import_domains(model: onnx.ModelProto) -> None:
    """Import the domains of nodes that the model uses without an import; onnx infers nothing for such a model."""
    missing = {node.domain for node in nodes_in(model.graph)}
    missing -= {item.domain or "" for item in model.opset_import} | {"ai.onnx", ""}
    for domain in sorted(missing):
        model.opset_import.add(domain=domain, version=1)


def hide_wrong_rules(model: onnx.ModelProto) -> None:
    """Hide from onnx the nodes whose shapes it infers wrongly: STFT with half of the frequencies, its default.

    It counts all frequencies; in onnx's own tests of 1,884 nodes, only the shapes of STFT are wrong.
    """
    for node in nodes_in(model.graph):
        if node.op_type == "STFT" and node.domain in ("", "ai.onnx"):
            node.domain = _HIDDEN


def _is_foreign(node: onnx.NodeProto, functions: Set[tuple[str, str]]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return not onnx.defs.has(node.op_type, domain) and (node.domain, node.op_type) not in functions


@dataclass
class _Scope:
    """Types and small constants that a graph sees."""

    types: Types = field(default_factory=dict)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def inside(self, graph: onnx.GraphProto) -> _Scope:
        scope = _Scope(dict(self.types), dict(self.constants))
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.WhichOneof("value") is not None:
                scope.types[info.name] = info.type
        for tensor in graph.initializer:
            scope.types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            scope.constants.pop(tensor.name, None)
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                scope.constants[tensor.name] = tensor
        return scope


def _learn(model: onnx.ModelProto, graph: onnx.GraphProto, outer: _Scope, functions: Set[tuple[str, str]]) -> bool:
    """Record types of foreign nodes' outputs in a graph and its subgraphs; return whether any was new."""
    scope = outer.inside(graph)
    foreign = [node for node in graph.node if _is_foreign(node, functions)]
    learned: Types = {}
    for node in foreign:
        learned |= _plugin_types(node, scope.types)
    scope.types |= learned
    if any(not _is_complete(scope.types.get(name)) for node in foreign for name in node.output if name):
        learned |= _types_by_onnxruntime(model, graph, scope, foreign)
    changed = _record(graph, learned)
    scope = outer.inside(graph)
    return any([changed, *(_learn(model, body, scope, functions) for node in graph.node for body in bodies_of(node))])


def _is_complete(known: onnx.TypeProto | None) -> bool:
    if known is None or not known.tensor_type.elem_type or not known.tensor_type.HasField("shape"):
        return False
    return all(dim.WhichOneof("value") for dim in known.tensor_type.shape.dim)


def _record(graph: onnx.GraphProto, learned: Mapping[str, onnx.TypeProto]) -> bool:
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    changed = False
    for name, type_ in learned.items():
        info = infos.get(name)
        if info is None:
            info = graph.value_info.add(name=name)
        before = info.type.SerializeToString()
        _merge(info.type, type_)
        changed |= info.type.SerializeToString() != before
    return changed


def _merge(recorded: onnx.TypeProto, inferred: onnx.TypeProto) -> None:
    """Write an inferred type; dimensions that were not inferred keep their recorded size or name."""
    kept = list(recorded.tensor_type.shape.dim) if recorded.tensor_type.HasField("shape") else None
    merged = onnx.TypeProto()
    merged.CopyFrom(inferred)
    if kept is not None and not merged.tensor_type.HasField("shape"):
        merged.tensor_type.shape.dim.extend(kept)
    elif kept is not None and len(kept) == len(merged.tensor_type.shape.dim):
        for dim, before in zip(merged.tensor_type.shape.dim, kept, strict=True):
            if dim.WhichOneof("value") is None:
                dim.CopyFrom(before)
    recorded.CopyFrom(merged)


_FAILING_NODE = re.compile(
    r'In Node, \("[^"]*", (?P<op>\w+), "(?P<domain>[^"]*)"|error: (?P<domain2>[^:\s]*):(?P<op2>\w+)\('
)
_MOST_CUTS = 16


def _types_by_onnxruntime(
    model: onnx.ModelProto, graph: onnx.GraphProto, scope: _Scope, foreign: Iterable[onnx.NodeProto]
) -> Types:
    """Return the types that ONNX Runtime infers for foreign nodes' outputs.

    Operators that it does not know or rejects are cut out of the copy, with everything that needs their results.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    wanted = [node for node in foreign if any(node.output)]
    cut: set[tuple[str, str]] = set()
    options = native.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    register_libraries(options)
    while wanted and len(cut) <= _MOST_CUTS:
        copy = _copy(model, graph, scope, wanted, cut)
        try:
            # Not `InferenceSession` of the package, which initializes: that needs weights and kernels.
            session = native.InferenceSession(options, copy.SerializeToString(), False, False)
        except Exception as error:
            failing = _FAILING_NODE.search(str(error))
            if failing is None:
                return {}
            key = failing["domain"] or failing["domain2"] or "", failing["op"] or failing["op2"]
            if key in cut or not any(key == (node.domain, node.op_type) for node in wanted):
                return {}
            cut.add(key)
            wanted = [node for node in wanted if (node.domain, node.op_type) != key]
        else:
            return _read_types(session.outputs_meta, wanted)
    return {}


def _copy(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    scope: _Scope,
    wanted: Iterable[onnx.NodeProto],
    cut: Set[tuple[str, str]],
) -> onnx.ModelProto:
    """Return the part of a graph that ONNX Runtime can load, with the wanted nodes' outputs and ranks as outputs."""
    copy = onnx.ModelProto(ir_version=_IR_VERSION, functions=model.functions, opset_import=model.opset_import)
    if not any(item.domain in ("", "ai.onnx") for item in copy.opset_import):
        copy.opset_import.add(domain="", version=_OPSET)
    copy.graph.name = "shapes"
    names = {name for node in wanted for name in node.output if name}
    computed = _add_nodes(copy.graph, graph, scope, names, cut)
    for name in computed - names:
        if name in scope.types:
            copy.graph.value_info.add(name=name).type.CopyFrom(scope.types[name])
    for name in names & computed:
        # A scalar and a tensor of unknown rank are listed alike: only the shape of the shape distinguishes them.
        copy.graph.node.add(op_type="Shape", input=[name], output=[_PREFIX + name])
        copy.graph.output.add(name=name)
        copy.graph.output.add(name=_PREFIX + name)
    return copy


def _add_nodes(
    copy: onnx.GraphProto, graph: onnx.GraphProto, scope: _Scope, wanted: Set[str], cut: Set[tuple[str, str]]
) -> set[str]:
    """Copy the nodes whose inputs are computed, constant or of known type; return the names that they compute.

    Weights become inputs, and so do results of omitted nodes whose types are recorded.
    """
    available: set[str] = set()
    computed: set[str] = set()
    for node in graph.node:
        needed = _reads(node)
        for name in needed - available:
            if name in scope.constants:
                copy.initializer.append(scope.constants[name])
            elif name in scope.types and name not in wanted:
                copy.input.add(name=name).type.CopyFrom(scope.types[name])
            else:
                break
            available.add(name)
        if (node.domain, node.op_type) not in cut and needed <= available and available.isdisjoint(node.output):
            copy.node.append(node)
            if node.domain == _HIDDEN:
                copy.node[-1].domain = ""
            computed.update(filter(None, node.output))
            available.update(filter(None, node.output))
    return computed


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those that its subgraphs capture included."""
    names = set(filter(None, node.input))
    for body in bodies_of(node):
        local = {item.name for item in (*body.input, *body.initializer)}
        for inner in body.node:
            names |= _reads(inner) - local
            local.update(inner.output)
        names |= {item.name for item in body.output} - local
    return names


def _without_wrong_dims(op_type: str, index: int, dims: list[int | str | None]) -> list[int | str | None]:
    """Return the dimensions of an output without those that ONNX Runtime infers wrongly."""
    if op_type == "GroupQueryAttention" and index in (1, 2):
        return [*dims[:2], None, *dims[3:]]  # it takes the length of the grown cache for that of the given one
    if op_type == "GatherBlockQuantized":
        return [dim if isinstance(dim, int) else None for dim in dims]  # it takes packed bytes for elements
    return dims


def _read_types(listed: Iterable[Any], wanted: Iterable[onnx.NodeProto]) -> Types:
    outputs = {item.name: item for item in listed}
    types: Types = {}
    for node in wanted:
        for index, name in enumerate(node.output):
            item = outputs.get(name)
            if item is None or not item.type.startswith("tensor("):
                continue
            known = outputs[_PREFIX + name].shape == [len(item.shape)]
            dims = _without_wrong_dims(node.op_type, index, item.shape) if known else None
            types[name] = onnx.helper.make_tensor_type_proto(dtype_of(item.type).value, dims)
    return types


_FLOAT, _INT32 = ir.DataType.FLOAT.value, ir.DataType.INT32.value


def _plugin_types(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> Types:
    """Return the types of a TensorRT plugin's outputs, for the plugins that exporters write."""
    rule = _PLUGINS.get(node.op_type)
    known = types.get(node.input[0]) if node.input else None
    if rule is None or node.domain == "com.microsoft" or known is None or not known.tensor_type.HasField("shape"):
        return {}
    return dict(zip(node.output, rule(node, known), strict=False))


def _detections(node: onnx.NodeProto, boxes: onnx.TypeProto) -> list[onnx.TypeProto]:
    """Return the types of NMS plugins: the number of detections, boxes, scores, classes.

    Classes are int32 in EfficientNMS and fp32 in BatchedNMS.
    """
    dims = [dim.dim_value or dim.dim_param or None for dim in boxes.tensor_type.shape.dim[:1]]
    name = "max_output_boxes" if node.op_type == "EfficientNMS_TRT" else "keepTopK"
    count = next((item.i for item in node.attribute if item.name == name), None)
    element = boxes.tensor_type.elem_type
    classes = _INT32 if node.op_type == "EfficientNMS_TRT" else element
    make = onnx.helper.make_tensor_type_proto
    return [
        make(_INT32, [*dims, 1]),
        make(element, [*dims, count, 4]),
        make(element, [*dims, count]),
        make(classes, [*dims, count]),
    ]


_PLUGINS: Mapping[str, Callable[[onnx.NodeProto, onnx.TypeProto], list[onnx.TypeProto]]] = {
    "BatchedNMSDynamic_TRT": _detections,
    "BatchedNMS_TRT": _detections,
    "EfficientNMS_TRT": _detections,
    "InstanceNormalization_TRT": lambda node, given: [given],
}
"""Plugin -> rule of its outputs, as TensorRT documents them."""
