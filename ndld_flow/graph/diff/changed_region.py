"""The part of two models in which they differ, as one graph to draw."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.drawing.graph import DrawnEdge, DrawnGraph, DrawnNode
from ndld_flow.graph.diff.matches import Sides
from ndld_flow.models.nodes import is_constant, node_label, op_name
from ndld_flow.records.model_diff import ModelDiff

_MOST = 40
_SIGNS = {"added": "+ ", "removed": "\N{MINUS SIGN} ", "changed": "~ ", "same": ""}


def changed_region(sides: Sides, diff: ModelDiff) -> DrawnGraph | None:
    """Return the connected nodes of the main graph among which most changed, with their neighbours.

    Constants are left out: where thousands of them become initializers, they would hide everything else. The family of
    a drawn node is its change: `added`, `removed`, `changed` or `same`. None if no node changed.
    """
    union = _Union(sides, diff)
    changed = [key for key in union.nodes if union.change_of(key) != "same"]
    regions = list(_regions(changed, union.around))
    if not regions:
        return None
    kept = max(regions, key=lambda region: sum(union.change_of(key) != "same" for key in region))[:_MOST]
    places = {key: index for index, key in enumerate(key for key in union.nodes if key in set(kept))}
    drawn = sum(union.change_of(key) != "same" for key in kept)
    return DrawnGraph(
        tuple(union.drawn(key) for key in places),
        tuple(
            DrawnEdge(places[source], places[target], "", name)
            for source, target, name in union.edges
            if source in places and target in places
        ),
        subtitle=f"{count(drawn)} of {count(len(changed))} changed nodes" if drawn < len(changed) else "",
    )


class _Union:
    """The nodes of both main graphs: matched ones once, by their number, and others by themselves."""

    def __init__(self, sides: Sides, diff: ModelDiff) -> None:
        self._matches = sides.matches.nodes
        self._edited = {
            (changed.after.scope, changed.after.name)
            for changed in diff.nodes.changed
            if any(change.aspect not in ("name", "consequence") for change in changed.changes)
        }
        graphs = [sides.after.model.graph, sides.before.model.graph]
        self.nodes: dict[Hashable, ir.Node] = {}
        self._changes: dict[Hashable, str] = {}
        self.edges: dict[tuple[Hashable, Hashable, str], None] = {}
        for graph, lone in zip(graphs, ("added", "removed"), strict=True):
            for node in graph:
                if not is_constant(node):
                    self._add(node, lone)
        self.around: dict[Hashable, list[Hashable]] = defaultdict(list)
        for source, target, _ in self.edges:
            self.around[source].append(target)
            self.around[target].append(source)

    def _add(self, node: ir.Node, lone: str) -> None:
        key = self._key(node)
        if key not in self.nodes:
            self.nodes[key] = node
            edited = ("", node_label(node)) in self._edited
            self._changes[key] = lone if node not in self._matches else "changed" if edited else "same"
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is None or producer is None or is_constant(producer) or producer.graph is not node.graph:
                continue
            source = self._key(producer)
            # An edge of the model before between two nodes that both models have may be gone: only the later is drawn.
            if lone == "added" or node not in self._matches or producer not in self._matches:
                self.edges[source, key, value.name or ""] = None

    def _key(self, node: ir.Node) -> Hashable:
        number = self._matches.number(node)
        return node if number is None else number

    def change_of(self, key: Hashable) -> str:
        return self._changes[key]

    def drawn(self, key: Hashable) -> DrawnNode:
        node, change = self.nodes[key], self._changes[key]
        name = short_name(node_label(node), 200)
        return DrawnNode(
            f"{change}: {name}", _SIGNS[change] + short_name(op_name(node), 40), change, details=(short_name(name, 28),)
        )


def _regions(changed: Sequence[Hashable], around: Mapping[Hashable, Sequence[Hashable]]) -> Iterator[list[Hashable]]:
    """Yield changed nodes with their neighbours; those that share a neighbour are one region."""
    pending = dict.fromkeys(changed)
    known = frozenset(changed)
    while pending:
        region: dict[Hashable, None] = {}
        queue = deque([next(iter(pending))])
        while queue:
            node = queue.popleft()
            if node not in region:
                region[node] = None
                pending.pop(node, None)
                queue.extend(other for other in around.get(node, ()) if node in known or other in known)
        yield list(region)
