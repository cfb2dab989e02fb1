"""Nodes of a model grouped by the scopes in their names, as the modules that they were exported from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.export.pytorch.call import is_constant
from ndld_flow.models.scopes import inner_graphs

_DEEPEST = 32
_LONGEST = 4096
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter writes the scopes of a node."""


@dataclass(frozen=True)
class Scope:
    """Nodes that form one module, and scopes inside it, in an order in which they can run."""

    name: str
    parts: tuple[ir.Node | Scope, ...]

    def nodes(self) -> Iterator[ir.Node]:
        for part in self.parts:
            if isinstance(part, Scope):
                yield from part.nodes()
            else:
                yield part


def scope_tree(graph: ir.Graph) -> Scope:
    """Return the main graph's nodes as a tree of scopes; constants are left out, and scopes of one node dissolved."""
    nodes = [node for node in graph if not is_constant(node.outputs[0] if node.outputs else None)]
    return Scope("", _parts([(node, scopes_of_node(node)) for node in nodes]))


def scopes_of_node(node: ir.Node) -> tuple[str, ...]:
    """Return the names of a node's scopes, the outermost first: `/layer1/layer1.0/conv1/Conv` -> three of them."""
    listed = node.metadata_props.get(_SCOPES, "")
    if listed and len(listed) < _LONGEST:
        try:
            names = ast.literal_eval(listed)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            names = []
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(name for name in names[:-1] if name)[:_DEEPEST]
    return tuple(part for part in (node.name or "").split("/")[:-1] if part)[:_DEEPEST]


_Scoped = tuple[ir.Node, tuple[str, ...]]


def _parts(nodes: Sequence[_Scoped]) -> tuple[ir.Node | Scope, ...]:
    groups = _acyclic_groups(nodes)
    parts: list[ir.Node | Scope] = []
    for name, group in groups:
        if not name:
            parts += [node for node, _ in group]
        elif len(group) == 1:
            parts.append(group[0][0])
        else:
            inner = _parts([(node, scopes[1:]) for node, scopes in group])
            # A scope whose only part is another one adds nothing but a level.
            only = inner[0] if len(inner) == 1 else None
            parts.append(Scope(f"{name}/{only.name}", only.parts) if isinstance(only, Scope) else Scope(name, inner))
    return tuple(parts)


def _acyclic_groups(nodes: Sequence[_Scoped]) -> list[tuple[str, list[_Scoped]]]:
    """Group nodes by their outermost scope; a scope that others interrupt becomes several groups."""
    keys = [scopes[0] if scopes else "" for _, scopes in nodes]
    units = [key or number for number, key in enumerate(keys)]
    runs = [0] * len(nodes)
    for number in range(1, len(nodes)):
        runs[number] = runs[number - 1] + (units[number] != units[number - 1])
    tangled = _in_cycles(nodes, units)
    labels = [(unit, runs[number] if unit in tangled else 0) for number, unit in enumerate(units)]
    groups: dict[object, list[int]] = {}
    for number, label in enumerate(labels):
        groups.setdefault(label, []).append(number)
    order = _sorted_groups(nodes, labels)
    return [(keys[groups[label][0]], [nodes[number] for number in groups[label]]) for label in order]


def _edges(nodes: Sequence[_Scoped], labels: Sequence[object]) -> dict[object, set[object]]:
    """Return group -> groups whose values it reads."""
    place = {node: labels[number] for number, (node, _) in enumerate(nodes)}
    edges: dict[object, set[object]] = {label: set() for label in labels}
    for number, (node, _) in enumerate(nodes):
        for value in read_values(node):
            producer = value.producer()
            if producer is not None and producer in place and place[producer] != labels[number]:
                edges[labels[number]].add(place[producer])
    return edges


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its subgraphs read."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            for graph in (attribute.as_graph(), *inner_graphs(attribute.as_graph())):
                for inner in graph:
                    yield from (value for value in inner.inputs if value is not None)
                yield from graph.outputs


def _in_cycles(nodes: Sequence[_Scoped], labels: Sequence[object]) -> set[object]:
    """Return the groups that both read from each other, directly or through others: what is left when groups that
    read nothing, and then groups that nothing reads, are removed one after the other.
    """
    edges = _edges(nodes, labels)
    for _ in range(2):
        edges = _without_sources(edges)
        reversed_edges: dict[object, set[object]] = {label: set() for label in edges}
        for label, read in edges.items():
            for each in read:
                reversed_edges[each].add(label)
        edges = reversed_edges
    return set(edges)


def _without_sources(edges: dict[object, set[object]]) -> dict[object, set[object]]:
    left = {label: set(read) for label, read in edges.items()}
    readers: dict[object, list[object]] = {label: [] for label in left}
    for label, read in left.items():
        for each in read:
            readers[each].append(label)
    free = [label for label, read in left.items() if not read]
    while free:
        label = free.pop()
        del left[label]
        for reader in readers[label]:
            if reader in left and label in left[reader]:
                left[reader].discard(label)
                if not left[reader]:
                    free.append(reader)
    return left


def _sorted_groups(nodes: Sequence[_Scoped], labels: Sequence[object]) -> list[object]:
    """Return the groups so that each follows those that it reads, otherwise in the order of their first node."""
    edges = _edges(nodes, labels)
    first = {label: number for number, label in reversed(list(enumerate(labels)))}
    done: dict[object, None] = {}
    waiting = sorted(edges, key=lambda label: first[label], reverse=True)
    while waiting:
        label = waiting[-1]
        missing = [each for each in edges[label] if each not in done]
        if label in done or not missing:
            waiting.pop()
            done[label] = None
        else:
            waiting += sorted(missing, key=lambda each: first[each], reverse=True)
    return list(done)


def short_scope_name(name: str) -> str:
    """Return the last part of a scope's name: `0` for `layer1.0`, `attention` for `encoder/attention`."""
    return re.split(r"[./]", name.rstrip("./"))[-1]
