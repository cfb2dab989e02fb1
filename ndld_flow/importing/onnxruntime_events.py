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
from pathlib import Path
from typing import Any

from ndld_flow.importing.dtype_names import dtype_of_ort_element

MAX_EVENTS = 1_000_000
"""ONNX Runtime drops what comes after these, without a word."""
_NODE = "_kernel_time"
_RUN = "model_run"
_EXECUTOR = "Executor::Execute"

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

    @property
    def self_ms(self) -> tuple[float, ...]:
        """`self_us` in milliseconds."""
        return tuple(sample / 1e3 for sample in self.self_us)


@dataclass
class MeasuredPasses:
    """What a profile holds."""

    pass_ms: list[float] = field(default_factory=list)
    """Each `model_run`."""
    nodes: dict[Key, MeasuredNode] = field(default_factory=dict)
    """In order of execution, enclosing nodes before enclosed ones."""
    event_count: int = 0
    unreadable_lines: int = 0


@dataclass
class _Event:
    """An event and what it encloses."""

    name: str
    ts: int
    dur: int
    args: Mapping[str, Any]
    inner: list[_Event]

    @property
    def is_executor(self) -> bool:
        return self.name.endswith(_EXECUTOR)


def read_passes(path: Path, skip: int = 0) -> MeasuredPasses:
    """Read a profile, leaving out its first `skip` passes (warm-up) and any pass that was cut off at the end."""
    measured = MeasuredPasses()
    ended: list[_Event] = []
    seen = 0
    for event in _events(path, measured):
        if event.name == _RUN:
            if seen >= skip:
                _take_pass(measured, event, ended)
            ended.clear()
            seen += 1
            continue
        while ended and _encloses(event, ended[-1]):
            event.inner.append(ended.pop())
        event.inner.reverse()
        ended.append(event)
    for node in measured.nodes.values():
        node.self_us.extend([0] * (len(measured.pass_ms) - len(node.self_us)))
    return measured


def _events(path: Path, measured: MeasuredPasses) -> Iterator[_Event]:
    """Line by line: a long profile never lies in memory as a whole."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip().rstrip(",")
            if len(text) < 2:
                continue
            measured.event_count += 1
            try:
                raw = json.loads(text)
                name, args = str(raw["name"]), raw.get("args") or {}
                event = _Event(name, int(raw["ts"]), int(raw["dur"]), args, [])
            except (ValueError, KeyError, TypeError):
                measured.unreadable_lines += 1
                continue
            if event.name == _RUN or event.is_executor or (event.name.endswith(_NODE) and "op_name" in args):
                yield event


def _encloses(outer: _Event, inner: _Event) -> bool:
    """Executors enclose nodes and nodes enclose executors; neighbours of one kind only touch."""
    return inner.ts >= outer.ts and inner.is_executor != outer.is_executor


def _take_pass(measured: MeasuredPasses, run: _Event, ended: list[_Event]) -> None:
    number = len(measured.pass_ms)
    measured.pass_ms.append(run.dur / 1e3)
    for executor in ended:
        _take_nodes(measured, executor.inner, None, 0, number)


def _take_nodes(measured: MeasuredPasses, events: list[_Event], parent: Key | None, depth: int, number: int) -> None:
    for event in sorted(events, key=lambda event: event.ts):
        name = event.name.removesuffix(_NODE)
        key: Key = (parent, str(event.args.get("node_index", "")), name)
        node = measured.nodes.get(key)
        if node is None:
            node = measured.nodes[key] = _measured(event, name, parent, depth)
        node.self_us.extend([0] * (number + 1 - len(node.self_us)))
        enclosed = [inner for executor in event.inner for inner in executor.inner]
        # Whole microseconds may add up to more than the whole.
        node.self_us[number] += max(0, event.dur - sum(inner.dur for inner in enclosed))
        _take_nodes(measured, enclosed, key, depth + 1, number)


def _measured(event: _Event, name: str, parent: Key | None, depth: int) -> MeasuredNode:
    return MeasuredNode(
        name=name,
        op_type=str(event.args["op_name"]),
        provider=str(event.args.get("provider", "")),
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
    return tuple((dtype_of_ort_element(str(kind)), tuple(int(dim) for dim in dims)) for kind, dims in pairs)
