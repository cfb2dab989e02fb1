"""ONNX Runtime's profile: how long each node took by itself in each pass.

The file is a JSON list, one event a line, in the order in which the events ended, times in whole microseconds. A run is
a `model_run` event. It encloses a `...Executor::Execute` event, which encloses the nodes' `<name>_kernel_time` events;
the node of an If or Loop encloses one more Execute for each time a body ran, and so on. What an event encloses ended
before it and began no earlier.
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
"""ONNX Runtime drops what comes after these, without a word."""
_NODE = "_kernel_time"
_RUN = "model_run"
_EXECUTOR = "Executor::Execute"
_MAX_DEPTH = 64
"""No model nests bodies so deep; a broken file may."""
_MAX_SAMPLES = 20 * MAX_EVENTS
_MAX_US = 10**15
"""Thirty years; a broken file may hold more than a float does."""

Key = tuple["Key | None", str, str]
"""What tells a node from all others: its enclosing node, its index in its graph (which restarts in each subgraph),
and its name."""
TypeAndShape = tuple[str, tuple[int, ...]]


@dataclass
class MeasuredNode:
    """One executed node over all passes."""

    name: str
    """Unnamed nodes are called `<op type>_<index>`."""
    op_type: str
    provider: str
    parent: Key | None
    """The If or Loop whose body it is in."""
    depth: int
    inputs: tuple[TypeAndShape, ...]
    outputs: tuple[TypeAndShape, ...]
    self_us: list[int]
    """For each pass, without enclosed nodes; a node that runs several times in a pass has the sum."""
    calls: int = 0
    """How often it ran, over all passes."""

    @property
    def self_ms(self) -> tuple[float, ...]:
        """`self_us` in milliseconds."""
        return tuple(sample / 1e3 for sample in self.self_us)


@dataclass
class MeasuredPasses:
    """What a profile holds."""

    pass_ms: list[float] = field(default_factory=list)
    """Each `model_run`."""
    executor_ms: list[float] = field(default_factory=list)
    """What the outermost executor of each pass took: all nodes, and the pauses between them."""
    starts_us: list[int] = field(default_factory=list)
    """When each pass began, after the profiler did."""
    offsets: list[int] = field(default_factory=list)
    """Where the events of each pass begin in the file, in bytes."""
    nodes: dict[Key, MeasuredNode] = field(default_factory=dict)
    """In order of execution, enclosing nodes before enclosed ones."""
    event_count: int = 0
    unreadable_lines: int = 0


@dataclass
class Event:
    """An event and what it encloses; times in microseconds."""

    name: str
    ts: int
    dur: int
    tid: int
    args: Mapping[str, Any]
    inner: list[Event]
    """In order of start. Of a node executors, of an executor nodes, of a run its executor."""

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
    """Read a profile, leaving out its first `skip` passes (warm-up) and any pass that was cut off at the end.

    Raises ValueError for what no model measures: millions of nodes in millions of passes.
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
    """The run whose events begin at `offset`, one of `MeasuredPasses.offsets`, with all that it encloses."""
    return next(run for _, run in _runs(path, MeasuredPasses(), offset))


def key_of(event: Event, parent: Key | None) -> Key:
    """Of a node's event, in the node it is enclosed by."""
    return (parent, str(event.args.get("node_index", "")), event.node_name)


def _runs(path: Path, measured: MeasuredPasses, start: int) -> Iterator[tuple[int, Event]]:
    """Each `model_run`, and where its events begin in the file."""
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
    """Each event that matters, and where its line ends. A long profile never lies in memory as a whole."""
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
        raise TypeError("an event is an object, and so are its arguments")
    ts, dur = int(raw["ts"]), int(raw["dur"])
    if not (0 <= dur <= _MAX_US and abs(ts) <= _MAX_US):
        raise ValueError("no such time can be")
    return Event(text_of(raw["name"]), ts, dur, int(raw.get("tid", 0)), args, [])


def _encloses(outer: Event, inner: Event) -> bool:
    """Executors enclose nodes and nodes enclose executors; neighbours of one kind only touch."""
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
        # Whole microseconds may add up to more than the whole.
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
    """`[{"float": [1, 3]}]` -> `(("float32", (1, 3)),)`."""
    if not isinstance(listed, list):
        return ()
    pairs = [next(iter(entry.items())) for entry in listed if isinstance(entry, dict) and entry]
    return tuple((dtype_of_ort_element(text_of(kind)), shape_of(dims) or ()) for kind, dims in pairs)
