"""Convert the output of ONNX Runtime's profiler (`SessionOptions.enable_profiling`) to a Profile.

The file is a JSON list, one event per line, in the order in which the events ended, times in whole microseconds. A run
is a `model_run` event. It encloses a `...Executor::Execute` event, which encloses the nodes' `<name>_kernel_time`
events; the node of an If or Loop encloses one more Execute per execution of a body, and so on. Enclosed events end
before the enclosing event and do not begin earlier."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ndld_flow.base.dtype_names import dtype_of_ort_element
from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read.layer_work import count_macs, tensor_bytes
from ndld_flow.profiles.read.sources import check_size, number_of, read_ends, shape_of, text_of
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.measurement import LatencySummary, Machine
from ndld_flow.records.profile import Layer, LayerRole, Profile, ProfileRun, RuntimeTraits, Span, TensorInfo

MAX_EVENTS = 1_000_000
"""ONNX Runtime silently drops further events."""
_NODE = "_kernel_time"
_RUN = "model_run"
_EXECUTOR = "Executor::Execute"
_MAX_DEPTH = 64
"""Limit for damaged files; no model nests bodies this deep."""
_MAX_SAMPLES = 20 * MAX_EVENTS
_MAX_NODES = 100_000
"""Maximum number of names in a pass: each takes 7 kB. Events of one name, as of a Loop's body, become one layer."""
_MAX_US = 10**15
"""Limit for damaged files: thirty years."""

Key = tuple["Key | None", str, str]
"""Identity of a node: its enclosing node, its index in its graph (which restarts in each subgraph), and its name."""
TypeAndShape = tuple[str, tuple[int, ...]]


@dataclass
class MeasuredNode:
    """One executed node over all passes."""

    name: str
    """Its name; `<op type>_<index>` for unnamed nodes."""
    op_type: str
    provider: str
    parent: Key | None
    """The If or Loop whose body it is in."""
    depth: int
    inputs: tuple[TypeAndShape, ...]
    outputs: tuple[TypeAndShape, ...]
    self_us: list[int]
    """One value per pass, without enclosed nodes; the sum if the node runs several times in a pass."""
    calls: int = 0
    """Number of executions over all passes."""

    @property
    def self_ms(self) -> tuple[float, ...]:
        """`self_us` in milliseconds."""
        return tuple(sample / 1e3 for sample in self.self_us)


@dataclass
class MeasuredPasses:
    """The passes and nodes of a profile."""

    pass_ms: list[float] = field(default_factory=list)
    """Duration of each `model_run`."""
    starts_us: list[int] = field(default_factory=list)
    """Start of each pass, relative to the start of the profiler."""
    offsets: list[int] = field(default_factory=list)
    """Byte offset of the first event of each pass in the file."""
    nodes: dict[Key, MeasuredNode] = field(default_factory=dict)
    """In execution order, enclosing nodes before enclosed ones."""
    event_count: int = 0
    unreadable_lines: int = 0


@dataclass
class Event:
    """An event and the events that it encloses; times in microseconds."""

    name: str
    ts: int
    dur: int
    tid: int
    args: Mapping[str, Any]
    inner: list[Event]
    """In order of start: executors of a node, nodes of an executor, the executor of a run."""

    @property
    def node_name(self) -> str:
        return self.name.removesuffix(_NODE)

    @property
    def nodes(self) -> list[Event]:
        """The nodes that this node or run encloses, in order of start."""
        enclosed = [node for executor in self.inner for node in executor.inner]
        return sorted(enclosed, key=lambda node: node.ts)

    @property
    def is_executor(self) -> bool:
        return self.name.endswith(_EXECUTOR)

    def encloses(self, other: Event) -> bool:
        """Return whether this event encloses another: executors enclose nodes and nodes enclose executors."""
        return other.ts >= self.ts and other.is_executor != self.is_executor


def read_passes(path: Path, skip: int = 0) -> MeasuredPasses:
    """Read a profile without its first `skip` passes (warm-up) and without a truncated last pass.

    Raises ValueError for an implausible size: millions of nodes in millions of passes.
    """
    measured = MeasuredPasses()
    for offset, run in islice(_runs(path, measured, 0), skip, None):
        number = len(measured.pass_ms)
        measured.offsets.append(offset)
        measured.starts_us.append(run.ts)
        measured.pass_ms.append(run.dur / 1e3)
        _take_nodes(measured, run.nodes, None, 0, number)
        if len(measured.nodes) * (number + 1) > _MAX_SAMPLES:
            raise ValueError(f"{len(measured.nodes):,} nodes in {number + 1:,} passes are more than can be kept")
    for node in measured.nodes.values():
        node.self_us.extend([0] * (len(measured.pass_ms) - len(node.self_us)))
    return measured


def read_one_pass(path: Path, offset: int) -> Event:
    """Return the run whose events begin at `offset` (one of `MeasuredPasses.offsets`), with all enclosed events."""
    return next(run for _, run in _runs(path, MeasuredPasses(), offset))


def key_of(event: Event, parent: Key | None) -> Key:
    """Return the identity of a node's event within its enclosing node."""
    return (parent, str(event.args.get("node_index", "")), event.node_name)


def _runs(path: Path, measured: MeasuredPasses, start: int) -> Iterator[tuple[int, Event]]:
    """Yield each `model_run` with the offset of its first event. Raises ValueError for too many nodes in a pass."""
    ended: list[Event] = []
    names = set[str]()
    begins = start
    for ends, event in _events(path, measured, start):
        names.add(event.name)
        if len(names) > _MAX_NODES:
            raise ValueError(f"a pass has more than {_MAX_NODES:,} nodes, the maximum")
        if event.name == _RUN:
            names.clear()
            event.inner.extend(ended)
            yield begins, event
            ended.clear()
            begins = ends
            continue
        while ended and event.encloses(ended[-1]):
            event.inner.append(ended.pop())
        event.inner.reverse()
        ended.append(event)


def _events(path: Path, measured: MeasuredPasses, start: int) -> Iterator[tuple[int, Event]]:
    """Yield each relevant event with the offset of the end of its line. The file is never held in memory as a whole."""
    ends = start
    with path.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            ends += len(line)
            text = line.decode("utf-8", "replace").strip().rstrip(",")
            if len(text) < 2:
                continue
            measured.event_count += 1
            try:
                event = _event(json.loads(text))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                measured.unreadable_lines += 1
                continue
            if event.name == _RUN or event.is_executor or (event.name.endswith(_NODE) and "op_name" in event.args):
                yield ends, event


def _event(raw: Any) -> Event:  # noqa: ANN401
    args = raw.get("args") or {} if isinstance(raw, dict) else None
    if not isinstance(args, dict):
        raise TypeError("an event and its arguments must be objects")
    ts, dur = int(raw["ts"]), int(raw["dur"])
    if not (0 <= dur <= _MAX_US and abs(ts) <= _MAX_US):
        raise ValueError("a time is out of range")
    return Event(text_of(raw["name"]), ts, dur, int(raw.get("tid", 0)), args, [])


def _take_nodes(measured: MeasuredPasses, events: list[Event], parent: Key | None, depth: int, number: int) -> None:
    for event in events:
        key = key_of(event, parent)
        node = measured.nodes.get(key)
        if node is None:
            node = measured.nodes[key] = MeasuredNode(
                name=event.node_name,
                op_type=text_of(event.args["op_name"]),
                provider=text_of(event.args.get("provider")),
                parent=parent,
                depth=depth,
                inputs=_types(event.args.get("input_type_shape")),
                outputs=_types(event.args.get("output_type_shape")),
                self_us=[],
            )
        node.calls += 1
        node.self_us.extend([0] * (number + 1 - len(node.self_us)))
        enclosed = event.nodes
        # Rounding to microseconds may make the parts longer than the whole.
        node.self_us[number] += max(0, event.dur - sum(inner.dur for inner in enclosed))
        if depth < _MAX_DEPTH:
            _take_nodes(measured, enclosed, key, depth + 1, number)


def _types(listed: Any) -> tuple[TypeAndShape, ...]:  # noqa: ANN401
    """Convert `[{"float": [1, 3]}]` to `(("float32", (1, 3)),)`."""
    if not isinstance(listed, list):
        return ()
    pairs = [next(iter(entry.items())) for entry in listed if isinstance(entry, dict) and entry]
    return tuple((dtype_of_ort_element(text_of(kind)), shape_of(dims) or ()) for kind, dims in pairs)


_SHORTEST_PAUSE_US = 3
"""Shorter gaps are the overhead of ONNX Runtime's profiler between two events."""
_MOST_SPANS = 20_000
"""A loop may run its body a hundred thousand times, more than a chart can show."""


def read_timeline(path: Path, offset: int, positions: Mapping[Key, int]) -> tuple[Span, ...]:
    """Return the spans of the pass whose events begin at `offset`, in order of start.

    `positions` maps a node to its layer. Bodies are left out, deepest first, if there are more than 20,000 spans.
    """
    run = read_one_pass(path, offset)
    spans = sorted(_Walk(run, positions).spans, key=lambda span: (span.start_ms, span.depth))
    deepest = max((span.depth for span in spans), default=0)
    while len(spans) > _MOST_SPANS and deepest:
        spans = [span for span in spans if span.depth < deepest]
        deepest -= 1
    return tuple(spans[:_MOST_SPANS])


@dataclass
class _Walk:
    """Walks through a run and its nested events."""

    run: Event
    positions: Mapping[Key, int]
    spans: list[Span] = field(default_factory=list)
    lanes: dict[int, str] = field(default_factory=dict)
    """Thread -> lane, in order of appearance."""

    def __post_init__(self) -> None:
        self.lanes[self.run.tid] = "CPU"
        self._take(self.run, self.run.nodes, None, 0)

    def _take(self, outer: Event, nodes: Sequence[Event], parent: Key | None, depth: int) -> None:
        self.spans.extend(self._pauses(outer, nodes, depth))
        for node in nodes:
            key = key_of(node, parent)
            if key not in self.positions:
                continue
            lane = self.lanes.setdefault(node.tid, f"CPU thread {len(self.lanes) + 1}")
            self.spans.append(
                Span(
                    lane=lane,
                    name=node.node_name,
                    start_ms=self._after(node.ts),
                    duration_ms=node.dur / 1e3,
                    layer=self.positions[key],
                    depth=depth,
                )
            )
            if node.inner:
                self._take(node, node.nodes, key, depth + 1)

    def _pauses(self, outer: Event, nodes: Sequence[Event], depth: int) -> Iterator[Span]:
        """Yield the times without a running node: before the first, between two, after the last."""
        lane = self.lanes.get(outer.tid, "CPU")
        free_since, end = outer.ts, outer.ts + outer.dur
        for number, node in enumerate(nodes):
            if node.ts - free_since > _SHORTEST_PAUSE_US:
                name = "between layers" if number else "before the first layer"
                yield self._pause(lane, name, (free_since, node.ts), depth)
            free_since = max(free_since, node.ts + node.dur)
        if nodes and end - free_since > _SHORTEST_PAUSE_US:
            yield self._pause(lane, "after the last layer", (free_since, end), depth)

    def _pause(self, lane: str, name: str, interval: tuple[int, int], depth: int) -> Span:
        start, end = interval
        return Span(
            lane=lane,
            name=name,
            start_ms=self._after(start),
            duration_ms=(end - start) / 1e3,
            kind="overhead",
            depth=depth,
        )

    def _after(self, ts: int) -> float:
        return (ts - self.run.ts) / 1e3


_CONTROL = ("If", "Loop", "Scan")
_REFORMATS = ("ReorderInput", "ReorderOutput")
_LOADS = re.compile(r"session_initialization|model_loading\w*")
_MAX_MACS = 10**18


def onnxruntime_traits(providers: Sequence[str]) -> RuntimeTraits:
    """Return the facts of ONNX Runtime on these execution providers, the preferred one first."""
    return RuntimeTraits(
        library="onnxruntime",
        on_gpu=providers[0] != "CPUExecutionProvider" if providers else None,
        separates_copies=True,
        inserts_casts=True,
        times_layers_on_host=True,
    )


def profile_of_onnxruntime(path: Path, label: str) -> Profile:
    """Read a profile. Raises RequestError if it cannot be read or has no complete pass."""
    check_size(path)
    measured, warmup = _read(path)
    if not measured.pass_ms:
        raise RequestError(
            f"{path} has no complete pass: ONNX Runtime writes one event per line, and `model_run` when a pass ends"
        )
    positions = {key: place for place, key in enumerate(measured.nodes)}
    median = LatencySummary.of(measured.pass_ms).median_pass
    layers = tuple(_layer(index, node, len(measured.pass_ms)) for index, node in enumerate(measured.nodes.values()))
    providers = tuple(dict.fromkeys(layer.provider for layer in layers if layer.provider))
    return Profile(
        label=label,
        model_digest="",
        backend="onnxruntime",
        runtime=onnxruntime_traits(providers),
        providers=providers,
        machine=Machine(),
        versions={},
        options={},
        inputs=(),
        outputs=(),
        profiler="on",
        warmup_passes=warmup,
        warmup_ms=0.0,
        runs=(
            ProfileRun(
                latency_ms=tuple(measured.pass_ms),
                load_ms=sum(_loads(path)),
                starts_ms=tuple((start - measured.starts_us[0]) / 1e3 for start in measured.starts_us),
            ),
        ),
        layers=layers,
        layer_runs=(len(measured.pass_ms),) if layers else (),
        timeline=read_timeline(path, measured.offsets[median], positions),
        timeline_basis=f"pass {median + 1} of {len(measured.pass_ms)}, the median one; profiler on",
        notes=(f"read from {path.name}", *_notes(measured, warmup)),
    )


def _read(path: Path) -> tuple[MeasuredPasses, int]:
    """Return the passes and the number of warm-up passes left out. The first pass allocates memory and is left out if
    there are others.
    """
    try:
        measured = read_passes(path, skip=1)
        return (measured, 1) if measured.pass_ms else (read_passes(path), 0)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path} cannot be read as a profile of ONNX Runtime: {error}") from error


def _loads(path: Path) -> Iterator[float]:
    """Yield the time to load the model, which appears once at the top of the file."""
    for line in read_ends(path).splitlines()[:20]:
        if not _LOADS.search(line[:2_000]):
            continue
        try:
            event = json.loads(line.strip().rstrip(","))
        except (ValueError, RecursionError):
            continue
        took = number_of(event.get("dur")) if isinstance(event, dict) else None
        if took is not None and took > 0 and _LOADS.fullmatch(str(event.get("name"))):
            yield took / 1e3


def _layer(index: int, node: MeasuredNode, passes: int) -> Layer:
    inputs, outputs = _tensors(node.inputs), _tensors(node.outputs)
    calls = node.calls / passes
    read, written = ([shape for _, shape in tensors] for tensors in (node.inputs, node.outputs))
    once = count_macs(node.op_type, read, written, {})
    return Layer(
        index=index,
        name=node.name,
        type=node.op_type,
        provider=node.provider,
        inputs=inputs,
        outputs=outputs,
        depth=node.depth,
        samples_ms=node.self_ms,
        role=role_of(node.op_type),
        macs=round(once * calls) if once is not None and once < _MAX_MACS else None,
        read_bytes=round(tensor_bytes(inputs) * calls),
        written_bytes=round(tensor_bytes(outputs) * calls),
    ).with_arithmetic()


def role_of(kind: str) -> LayerRole:
    """Return the purpose of a layer from its operator."""
    if kind in _REFORMATS:
        return "reformat"
    if kind in QUANTIZING_TYPES:
        return "quantize"
    if kind == "Cast":
        return "cast"
    if kind.startswith("Memcpy"):
        return "copy"
    return "control" if kind in _CONTROL else "compute"


def _tensors(types: Sequence[TypeAndShape]) -> tuple[TensorInfo, ...]:
    """Return tensors without names: the profile records only types and shapes."""
    return tuple(TensorInfo(name="", dtype=dtype, shape=shape) for dtype, shape in types)


def _notes(measured: MeasuredPasses, warmup: int) -> Iterator[str]:
    yield "latencies were measured with ONNX Runtime's profiler on, which makes small models several times slower"
    if warmup:
        yield "the first pass was skipped as warm-up"
    yield "the profile records neither the machine nor the options, nor the model's inputs and outputs"
    if measured.unreadable_lines:
        yield f"{measured.unreadable_lines} lines could not be read"
    if measured.event_count >= MAX_EVENTS:
        yield f"it has {measured.event_count:,} events: ONNX Runtime silently drops those after {MAX_EVENTS:,}"
