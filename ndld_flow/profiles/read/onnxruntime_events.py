"""Read ONNX Runtime's profile: the time of each node in each pass, without its subgraphs.

The file is a JSON list, one event a line, in the order in which the events ended, times in whole microseconds. A run is
a `model_run` event. It encloses a `...Executor::Execute` event, which encloses the nodes' `<name>_kernel_time` events;
the node of an If or Loop encloses one more Execute per execution of a body, and so on. Enclosed events end before the
enclosing event and do not begin earlier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ndld_flow.base.dtype_names import dtype_of_ort_element
from ndld_flow.profiles.read.json_values import shape_of, text_of

MAX_EVENTS = 1_000_000
"""ONNX Runtime silently drops further events."""
_NODE = "_kernel_time"
_RUN = "model_run"
_EXECUTOR = "Executor::Execute"
_MAX_DEPTH = 64
"""Limit for damaged files; no model nests bodies this deep."""
_MAX_SAMPLES = 20 * MAX_EVENTS
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
    executor_ms: list[float] = field(default_factory=list)
    """Duration of the outermost executor of each pass: all nodes and the gaps between them."""
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
        found = [node for executor in self.inner for node in executor.inner]
        return sorted(found, key=lambda node: node.ts)

    @property
    def is_executor(self) -> bool:
        return self.name.endswith(_EXECUTOR)


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
        measured.executor_ms.append(sum(executor.dur for executor in run.inner) / 1e3)
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
    """Yield each `model_run` with the offset of its first event."""
    ended: list[Event] = []
    begins = start
    for ends, event in _events(path, measured, start):
        if event.name == _RUN:
            event.inner.extend(ended)
            yield begins, event
            ended.clear()
            begins = ends
            continue
        while ended and _encloses(event, ended[-1]):
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


def _encloses(outer: Event, inner: Event) -> bool:
    """Return whether an event encloses another: executors enclose nodes and nodes enclose executors."""
    return inner.ts >= outer.ts and inner.is_executor != outer.is_executor


def _take_nodes(measured: MeasuredPasses, events: list[Event], parent: Key | None, depth: int, number: int) -> None:
    for event in events:
        key = key_of(event, parent)
        node = measured.nodes.get(key)
        if node is None:
            node = measured.nodes[key] = _measured(event, parent, depth)
        node.calls += 1
        node.self_us.extend([0] * (number + 1 - len(node.self_us)))
        enclosed = event.nodes
        # Rounding to microseconds may make the parts longer than the whole.
        node.self_us[number] += max(0, event.dur - sum(inner.dur for inner in enclosed))
        if depth < _MAX_DEPTH:
            _take_nodes(measured, enclosed, key, depth + 1, number)


def _measured(event: Event, parent: Key | None, depth: int) -> MeasuredNode:
    return MeasuredNode(
        name=event.node_name,
        op_type=text_of(event.args["op_name"]),
        provider=text_of(event.args.get("provider")),
        parent=parent,
        depth=depth,
        inputs=_types(event.args.get("input_type_shape")),
        outputs=_types(event.args.get("output_type_shape")),
        self_us=[],
    )


def _types(listed: Any) -> tuple[TypeAndShape, ...]:  # noqa: ANN401
    """Convert `[{"float": [1, 3]}]` to `(("float32", (1, 3)),)`."""
    if not isinstance(listed, list):
        return ()
    pairs = [next(iter(entry.items())) for entry in listed if isinstance(entry, dict) and entry]
    return tuple((dtype_of_ort_element(text_of(kind)), shape_of(dims) or ()) for kind, dims in pairs)
