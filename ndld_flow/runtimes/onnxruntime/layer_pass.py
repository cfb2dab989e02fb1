"""The layer pass: the time of each node of the model, read from profiles that ONNX Runtime wrote.

`layer_recording` records one for each process run. Here they are joined with each other, with the model as ONNX Runtime
ran it, and with the original model; each layer gets its tensors, role, kernel and amount of work.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import milliseconds
from ndld_flow.models.element_types import subgraphs_of
from ndld_flow.models.files import load_model
from ndld_flow.models.node_weights import evidence_of, with_producers
from ndld_flow.models.nodes import constant_tensor, node_label, precision_of
from ndld_flow.models.tensor_statistics import shape_of
from ndld_flow.models.tensors import numpy_dtype
from ndld_flow.precision.constraints.constraints import join_precisions
from ndld_flow.profiles.read.layer_work import count_macs
from ndld_flow.profiles.read.onnxruntime_profile import (
    MAX_EVENTS,
    Key,
    MeasuredNode,
    MeasuredPasses,
    TypeAndShape,
    read_passes,
    read_timeline,
    role_of,
)
from ndld_flow.records.measurement import LatencySummary
from ndld_flow.records.profile import Layer, LayerTimes, Span, TensorInfo
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU
from ndld_flow.runtimes.onnxruntime.layer_recording import WARMUP_PASSES
from ndld_flow.runtimes.protocol import LayerPass, RecordingPlan

_REPEATS_BODIES = ("Loop", "Scan")


def count_events(path: Path) -> int | None:
    """Return the largest number of events of a pass of this model; None if loops or functions multiply them.

    Raises `ModelError` if the file cannot be read as ONNX.
    """
    source = load_model(path)
    nodes = list(source.graph.all_nodes())
    if source.functions or any(node.op_type in _REPEATS_BODIES for node in nodes):
        return None
    return len(nodes) + 2


def read_layers(
    source: Path, recordings: Sequence[Path], optimized: Path | None, plan: RecordingPlan, *, parallel: bool = False
) -> LayerPass:
    """Read the recordings of `record_layers`, one for each process run, and delete them.

    `optimized` is the model as ONNX Runtime ran it; a missing file counts as None. `parallel`: nodes ran at the same
    time. Raises `ModelError` if `source` cannot be read as ONNX.
    """
    runs = [read_passes(recording, skip=WARMUP_PASSES) for recording in recordings]
    joined = _join(runs)
    try:
        ran = load_model(optimized) if optimized is not None and optimized.is_file() else None
    except ModelError:  # the model only adds origins of layers; the measurement is valid without it
        ran = None
    nodes, traced = _trace(load_model(source), joined, ran)
    layers = tuple(describe_layer(index, node) for index, node in enumerate(nodes))
    timeline, basis = _timeline(recordings, runs, joined)
    for recording in recordings:
        recording.unlink()
    layer_runs = tuple(len(run.pass_ms) for run in runs)
    return LayerPass(
        layers=layers,
        pass_ms=tuple(joined.pass_ms),
        notes=(
            *_shortcomings(joined, plan, len(runs), parallel),
            *_waits(LayerTimes(layers, layer_runs), plan),
            traced,
        ),
        layer_runs=layer_runs,
        timeline=timeline,
        timeline_basis=basis,
        waits_for_device=bool(plan.environment),
    )


def _waits(times: LayerTimes, plan: RecordingPlan) -> Iterator[str]:
    shortest_ms = min(filter(None, times.ms), default=0.0)
    if plan.environment and shortest_ms:
        shown = " ".join(f"{name}={value}" for name, value in plan.environment.items())
        yield (
            f"times of layers are those of passes in which each launch waits for the device ({shown}): they "
            f"include launching and waiting, at most the {milliseconds(shortest_ms)} of the shortest layer"
        )


def _join(runs: Sequence[MeasuredPasses]) -> MeasuredPasses:
    """Concatenate all passes, run after run. A node that did not run in a pass took no time in it."""
    joined = MeasuredPasses()
    for run in runs:
        before, passes = len(joined.pass_ms), len(run.pass_ms)
        joined.pass_ms.extend(run.pass_ms)
        joined.unreadable_lines += run.unreadable_lines
        for key, node in run.nodes.items():
            if key not in joined.nodes:
                joined.nodes[key] = replace(node, self_us=[0] * before, calls=0)
            joined.nodes[key].self_us.extend(node.self_us)
            joined.nodes[key].calls += node.calls
        for node in joined.nodes.values():
            node.self_us.extend([0] * (before + passes - len(node.self_us)))
    return joined


def _trace(source: ir.Model, measured: MeasuredPasses, optimized: ir.Model | None) -> tuple[list[RunNode], str]:
    """Return the nodes with their origins, and a sentence on how many of them were traced back to the model."""
    passes = max(1, len(measured.pass_ms))
    if optimized is None:
        untraced = [RunNode(node, None, (), node.calls / passes) for node in measured.nodes.values()]
        return untraced, "layers were not traced back to the model: the provider does not expose the model that it runs"
    ran = match_nodes(measured.nodes, optimized)
    origins = LayerOrigins(source, optimized)
    nodes = [
        RunNode(node, ran.get(key), origins.find(ran[key]) if key in ran else (), node.calls / passes)
        for key, node in measured.nodes.items()
    ]
    traced = [node.origins for node in nodes if node.origins]
    covered = len({origin for origins_of_layer in traced for origin in origins_of_layer})
    return nodes, (
        f"{len(traced)} of {len(nodes)} layers come from {covered} of the model's {origins.node_count} "
        f"nodes (constants not counted); {len(nodes) - len(traced)} layers were inserted by ONNX Runtime"
    )


def _timeline(
    recordings: Sequence[Path], runs: Sequence[MeasuredPasses], joined: MeasuredPasses
) -> tuple[tuple[Span, ...], str]:
    """Return the timeline of the median pass of all runs, and its description."""
    if not joined.pass_ms:
        return (), ""
    number = LatencySummary.of(joined.pass_ms).median_pass
    positions = {key: position for position, key in enumerate(joined.nodes)}
    basis = f"pass {number + 1} of {len(joined.pass_ms)} of the layer pass, its median, with ONNX Runtime's profiler on"
    for recording, run in zip(recordings, runs, strict=True):
        if number < len(run.offsets):
            return read_timeline(recording, run.offsets[number], positions), basis
        number -= len(run.offsets)
    return (), ""


def _shortcomings(measured: MeasuredPasses, plan: RecordingPlan, runs: int, parallel: bool) -> Iterator[str]:
    passes, requested = len(measured.pass_ms), plan.passes * runs
    if passes < requested:
        yield (
            f"{passes} layer passes instead of {requested}: ONNX Runtime keeps no more than {MAX_EVENTS:,} events, and "
            "silently drops the rest"
        )
    if measured.unreadable_lines:
        yield f"{measured.unreadable_lines} lines of ONNX Runtime's profile could not be read"
    devices = sorted({node.provider for node in measured.nodes.values()} - {CPU, ""})
    if devices and not plan.environment:
        yield (
            f"times of layers on {', '.join(devices)} are those of the host: ONNX Runtime's profiler does not wait for "
            "the device"
        )
    if parallel:
        yield "nodes ran in parallel: their times overlap, and those of and in If and Loop are approximate"


_CAST = "InsertedPrecisionFreeCast_"
"""Prefix of a tensor that was cast to a type the provider has a kernel for."""
_NCHWC = "_nchwc"
"""Suffix of the output's old name, in the name of a node that works on blocks of channels."""
_FUNCTION = "_inlfunc_"
"""Part of the name of a tensor from inside a local function, or from an operator that ONNX Runtime expanded."""
_GEMM = "gemm_output_reshape_arg"
"""Prefix of what a product and an addition, fused into Gemm, write; a Reshape that ONNX Runtime inserts follows."""
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
        self._aliases = _aliases(optimized.graph.all_nodes(), self._producers)
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
        makers = [self._find_producer(name, node) for name in computed if name in self._producers]

        def is_needed(value: ir.Value, producer: ir.Node) -> bool:
            return value.name not in read_names and value.name not in self._known and producer in self._position

        origins = with_producers(makers, is_needed)
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


def _aliases(optimized: Iterable[ir.Node], producers: Mapping[str, Sequence[ir.Node]]) -> dict[str, str]:
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
            made = (node.name or "").removesuffix(_NCHWC).removeprefix(_CAST)
            activation = node.attributes.get_string("activation", "")
            # An activation that is fused into blocks of channels, as HardSwish is, leaves the name of its input.
            before = (each for each in producers.get(made, ()) if each.op_type != activation)
            values = (value for producer in before for value in producer.outputs if value.name == made)
            readers = [reader for value in values for reader in value.consumers()]
            is_fused = len(readers) == 1 and readers[0].op_type == activation
            aliases[name] = (readers[0].outputs[0].name or "") if is_fused else made
        elif node.op_type == "Reshape" and node.inputs[0] is not None and (node.inputs[0].name or "").startswith(_GEMM):
            aliases[node.inputs[0].name or ""] = name
        for output in node.outputs:
            own = output.name or ""
            if own.startswith(_CAST):
                aliases[own] = own.removeprefix(_CAST)
    return aliases


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
    return str(tensor.dtype.numpy().name), shape_of(tensor)


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
    shapes = list(inputs.shapes)
    written = list(outputs.shapes)
    if node.ran is not None and node.ran.domain == _BLOCKED:
        _without_padding(node.origins, shapes, written)
    attributes = {} if node.ran is None else {name: each.value for name, each in node.ran.attributes.items()}
    once = count_macs(node.measured.op_type, shapes, written, attributes)
    return Layer(
        index=index,
        name=measured.name,
        type=measured.op_type,
        provider=measured.provider,
        asked_precision=join_precisions(map(precision_of, node.origins)),
        inputs=inputs.infos,
        outputs=outputs.infos,
        onnx_nodes=tuple(map(node_label, node.origins)),
        depth=measured.depth,
        samples_ms=measured.self_ms,
        role="reformat" if is_reformat else role_of(measured.op_type),
        tactic=_tactic(ran, inputs),
        macs=None if once is None else round(once * node.times_per_pass),
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


def _without_padding(
    origins: Sequence[ir.Node], inputs: list[tuple[int, ...] | None], outputs: list[tuple[int, ...] | None]
) -> None:
    """Replace padded channels of the blocked layout by the model's channels, which the original filter has."""
    filters = [constant_tensor(origin.inputs[1]) for origin in origins if origin.op_type == "Conv"]
    if len(filters) != 1 or filters[0] is None or len(inputs) < 2 or not outputs or outputs[0] is None:
        return
    shape = inputs[1] = shape_of(filters[0])
    outputs[0] = (outputs[0][0], shape[0], *outputs[0][2:])
