"""Convert one pass of ONNX Runtime's profile to a timeline: nodes, nested nodes, and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.profiles.read.onnxruntime_events import Event, Key, key_of, read_one_pass
from ndld_flow.records.profile import Span

_SHORTEST_PAUSE_US = 3
"""Shorter gaps are the overhead of ONNX Runtime's profiler between two events."""
_MOST_SPANS = 20_000
"""A loop may run its body a hundred thousand times, more than a picture can show."""


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
