"""The record of a layer: its tensors, role, kernel and amount of work."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ndld_flow.models.element_types import subgraphs_of
from ndld_flow.models.layer_evidence import evidence_of
from ndld_flow.models.nodes import precision_of
from ndld_flow.models.tensors import numpy_dtype
from ndld_flow.precision.constraints.constraints import join_precisions
from ndld_flow.profiles.read.layer_work import count_macs
from ndld_flow.profiles.read.onnxruntime_profile import Key, MeasuredNode, TypeAndShape, role_of
from ndld_flow.records.profile import Layer, TensorInfo

_CAST = "InsertedPrecisionFreeCast_"
"""Prefix of a tensor that was cast to a type the provider has a kernel for."""
_NCHWC = "_nchwc"
"""Suffix of the output's old name, in the name of a node that works on blocks of channels."""
_FUNCTION = "_inlfunc_"
"""Part of the name of a tensor from inside a local function, or from an operator that ONNX Runtime expanded."""
_READS_SHAPE_ONLY = ("Shape", "Size")
_MAX_FORWARD = 64
"""Maximum number of inlined nodes to follow to a tensor of the original model."""


def match_nodes(measured: Mapping[Key, MeasuredNode], optimized: ir.Model) -> dict[Key, ir.Node]:
    """Return measured node -> the node of the optimized model that ran.

    Nodes are matched within a graph by op type and name; nodes without a unique name by order, which is that of
    execution.
    """
    scopes: dict[Key | None, list[Key]] = defaultdict(list)
    for key, node in measured.items():
        scopes[node.parent].append(key)
    matched: dict[Key, ir.Node] = {}
    for parent, keys in scopes.items():  # an enclosing node comes before the nodes of its bodies
        graphs = [optimized.graph] if parent is None else []
        if parent in matched:
            graphs = list(subgraphs_of(matched[parent]))
        bodies = [dict(_match_graph(keys, measured, graph)) for graph in graphs]
        # Among the branches of an If, the one that ran matches best.
        for body in sorted(bodies, key=len):
            matched |= body
    return matched


def _match_graph(
    keys: Iterable[Key], measured: Mapping[Key, MeasuredNode], graph: ir.Graph
) -> Iterator[tuple[Key, ir.Node]]:
    waiting: dict[tuple[str, str], deque[ir.Node]] = defaultdict(deque)
    for node in graph:
        waiting[node.op_type, node.name or ""].append(node)
    for key in keys:
        wanted = measured[key]
        named = waiting.get((wanted.op_type, wanted.name))
        queue = named or waiting.get((wanted.op_type, ""))
        if queue:
            yield key, queue.popleft()


class LayerOrigins:
    """The original nodes of optimized ones."""

    def __init__(self, original: ir.Model, optimized: ir.Model) -> None:
        self._nodes = [node for node in original.graph.all_nodes() if node.op_type != "Constant"]
        self._position = {node: position for position, node in enumerate(self._nodes)}
        self._by_name = {(node.op_type, node.name): node for node in self._nodes if node.name}
        self._producers: dict[str, list[ir.Node]] = defaultdict(list)
        for node in self._nodes:
            for output in node.outputs:
                self._producers[output.name or ""].append(node)
        self._aliases = _aliases(optimized.graph.all_nodes())
        self._known = {self._alias(value) for node in optimized.graph.all_nodes() for value in node.outputs}

    @property
    def node_count(self) -> int:
        """Return the number of nodes of the original model that compute something, subgraphs included."""
        return len(self._nodes)

    def find(self, node: ir.Node) -> tuple[ir.Node, ...]:
        """Return the original nodes of an optimized one, in the model's order.

        Empty for nodes that ONNX Runtime inserted: reorders, casts, copies.
        """
        read_names = {self._alias(value) for value in node.inputs if value is not None}
        computed = [name for name in self._output_names(node) if name not in read_names]
        origins: set[ir.Node] = set()
        waiting = [self._find_producer(name, node) for name in computed if name in self._producers]
        while waiting:
            origin = waiting.pop()
            if origin in origins:
                continue
            origins.add(origin)
            if origin.op_type in _READS_SHAPE_ONLY:
                continue  # its value was known during optimization: the producer of its input is not part of this layer
            waiting.extend(
                producer
                for value in origin.inputs
                if value is not None and value.name not in read_names and value.name not in self._known
                if (producer := value.producer()) in self._position and producer is not None
            )
        if not origins and (node.op_type, node.name or "") in self._by_name:
            origins = {self._by_name[node.op_type, node.name or ""]}
        return tuple(sorted(origins, key=self._position.__getitem__))

    def _output_names(self, node: ir.Node) -> list[str]:
        """Return the original names of the node's outputs, or of its followers' outputs when it was inlined."""
        names = [self._alias(value) for value in node.outputs]
        if any(name in self._producers for name in names) or not any(_FUNCTION in name for name in names):
            return names
        waiting, seen = deque([node]), {node}
        while waiting and len(seen) < _MAX_FORWARD:
            for value in waiting.popleft().outputs:
                for follower in value.consumers():
                    outputs = [self._alias(output) for output in follower.outputs]
                    if any(name in self._producers for name in outputs):
                        return outputs
                    if follower not in seen:
                        seen.add(follower)
                        waiting.append(follower)
        return names

    def _find_producer(self, name: str, node: ir.Node) -> ir.Node:
        """Return the producer; if several branches compute a tensor of this name, the one with the node's name."""
        candidates = self._producers[name]
        return next((origin for origin in candidates if origin.name == node.name), candidates[0])

    def _alias(self, value: ir.Value) -> str:
        return self._aliases.get(value.name or "", value.name or "")


def _aliases(optimized: Iterable[ir.Node]) -> dict[str, str]:
    """Return renamed tensor -> its name in the original model."""
    aliases: dict[str, str] = {}
    for node in optimized:
        if not node.outputs:
            continue
        name = node.outputs[0].name or ""
        if node.op_type == "ReorderInput" and node.inputs and node.inputs[0] is not None:
            read = node.inputs[0].name or ""
            aliases[name] = aliases.get(read, read)
        elif node.domain == "com.microsoft.nchwc" and (node.name or "").endswith(_NCHWC):
            aliases[name] = (node.name or "").removesuffix(_NCHWC).removeprefix(_CAST)
        for output in node.outputs:
            own = output.name or ""
            if own.startswith(_CAST):
                aliases[own] = own.removeprefix(_CAST)
    return aliases


def origin_name(node: ir.Node) -> str:
    """Return the node's name, or that of its first output."""
    return node.name or (node.outputs[0].name if node.outputs else "") or node.op_type


def count_covered(origins: Iterable[Iterable[ir.Node]]) -> int:
    """Return the number of distinct original nodes of layers."""
    return len({node for nodes in origins for node in nodes})


@dataclass(frozen=True)
class Operand:
    """One input or output of a node."""

    info: TensorInfo
    is_weight: bool = False

    @property
    def bytes(self) -> int:
        """Return the bytes of its values; 0 for strings and non-tensors."""
        dtype = numpy_dtype(self.info.dtype)
        if dtype is None:
            return 0
        bits = ir.DataType.from_numpy(dtype).bitwidth  # numpy keeps four bits in a byte, ONNX two in one
        return (prod(self.info.shape) * bits + 7) // 8


Operands = tuple["Operand | None", ...]
"""Operands by position; None for an omitted optional one."""


@dataclass(frozen=True)
class Alignment:
    """The tensors of a node, and whether some of its weights are missing in the profile."""

    operands: Operands
    packed: bool = False
    """ONNX Runtime does not list weights that it repacked for its kernel while loading."""

    @property
    def known(self) -> tuple[Operand, ...]:
        """Return the operands except omitted ones."""
        return tuple(operand for operand in self.operands if operand is not None)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(operand.info for operand in self.known)

    @property
    def shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return the shapes by position."""
        return tuple(None if operand is None else operand.info.shape for operand in self.operands)


def align(listed: Sequence[TypeAndShape], values: Sequence[ir.Value | None] | None) -> Alignment:
    """Assign the tensors in a profile to the ports of the node that ran; None for an unknown node.

    The profile omits missing optional tensors and packed weights; if the rest does not match the node, it is returned
    as listed, without names.
    """
    if values is not None:
        aligned = _aligned(listed, values)
        if aligned is not None:
            return aligned
    return Alignment(tuple(Operand(TensorInfo(name="", dtype=dtype, shape=shape)) for dtype, shape in listed))


def _aligned(listed: Sequence[TypeAndShape], values: Sequence[ir.Value | None]) -> Alignment | None:
    waiting = deque(listed)
    operands: list[Operand | None] = []
    packed = False
    for value in values:
        if value is None or not value.name:
            operands.append(None)
            continue
        weight = _weight(value)
        if waiting and (weight is None or waiting[0] == weight):
            dtype, shape = waiting.popleft()
        elif weight is not None:
            dtype, shape = weight
            packed = True
        else:
            return None
        info = TensorInfo(name=value.name, dtype=dtype, shape=shape)
        operands.append(Operand(info, is_weight=weight is not None))
    return None if waiting else Alignment(tuple(operands), packed)


def _weight(value: ir.Value) -> TypeAndShape | None:
    """Return dtype and shape of a constant; None for a computed value."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    shape = tensor.shape.numpy()
    return str(tensor.dtype.numpy().name), tuple(int(size) for size in shape)


_BLOCKED = "com.microsoft.nchwc"


@dataclass(frozen=True)
class RunNode:
    """A measured node, its node in the optimized model, and the original nodes of that one."""

    measured: MeasuredNode
    ran: ir.Node | None
    """None if the optimized model is not known."""
    origins: tuple[ir.Node, ...]
    times_per_pass: float


def describe_layer(index: int, node: RunNode) -> Layer:
    """Return the layer at this position in the order of execution."""
    measured, ran = node.measured, node.ran
    inputs = align(measured.inputs, None if ran is None else ran.inputs)
    outputs = align(measured.outputs, None if ran is None else ran.outputs)
    evidence = evidence_of(node.origins)
    is_reformat = measured.op_type == "Transpose" and ran is not None and not node.origins
    return Layer(
        index=index,
        name=measured.name,
        type=measured.op_type,
        provider=measured.provider,
        asked_precision=join_precisions(map(precision_of, node.origins)),
        inputs=inputs.infos,
        outputs=outputs.infos,
        onnx_nodes=tuple(map(origin_name, node.origins)),
        depth=measured.depth,
        samples_ms=measured.self_ms,
        role="reformat" if is_reformat else role_of(measured.op_type),
        tactic=_tactic(ran, inputs),
        macs=_macs(node, inputs, outputs),
        read_bytes=round(sum(operand.bytes for operand in inputs.known) * node.times_per_pass),
        written_bytes=round(sum(operand.bytes for operand in outputs.known) * node.times_per_pass),
        groups=ran.attributes.get_int("group", 1) if ran is not None and "Conv" in ran.op_type else None,
        weight_bytes=sum(operand.bytes for operand in inputs.known if operand.is_weight),
        weights=evidence.weights,
        attributes=evidence.attributes,
        activation="" if ran is None else ran.attributes.get_string("activation", "").lower(),
    ).with_arithmetic()


def _tactic(ran: ir.Node | None, inputs: Alignment) -> str:
    """Describe ONNX Runtime's kernel: its own domain, a fused activation, packed weights."""
    if ran is None:
        return ""
    activation = ran.attributes.get_string("activation", "")
    kernel = f"{ran.domain.rpartition('.')[2]}.{ran.op_type}" if ran.domain else ""
    kernel_text = f"{kernel or ran.op_type}({activation})" if activation else kernel
    return ", ".join(filter(None, (kernel_text, "packed weights" if inputs.packed else "")))


def _macs(node: RunNode, inputs: Alignment, outputs: Alignment) -> int | None:
    shapes = list(inputs.shapes)
    written = list(outputs.shapes)
    if node.ran is not None and node.ran.domain == _BLOCKED:
        _without_padding(node.origins, shapes, written)
    attributes = {} if node.ran is None else {name: each.value for name, each in node.ran.attributes.items()}
    once = count_macs(node.measured.op_type, shapes, written, attributes)
    return None if once is None else round(once * node.times_per_pass)


def _without_padding(
    origins: Sequence[ir.Node], inputs: list[tuple[int, ...] | None], outputs: list[tuple[int, ...] | None]
) -> None:
    """Replace padded channels of the blocked layout by the model's channels, which the original filter has."""
    filters = [_constant_shape(origin.inputs[1]) for origin in origins if origin.op_type == "Conv"]
    if len(filters) != 1 or filters[0] is None or len(inputs) < 2 or not outputs or outputs[0] is None:
        return
    inputs[1] = filters[0]
    outputs[0] = (outputs[0][0], filters[0][0], *outputs[0][2:])


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        tensor = None if attribute is None else attribute.as_tensor()
    return None if tensor is None else tuple(int(size) for size in tensor.shape.numpy())
