"""How much speaks against each node before anything is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.precision_search.evidence import Suspect

_BESIDE = 0.9
"""Severity of what stands next to a suspect; each step further takes a little off."""
_OFF = 0.01
_AFTER, _BEFORE = 2, 40
"""Steps with and against the flow. What a suspect reads may have lost its bits long before, as in a running sum."""

Neighbours = Callable[[ir.Node], Sequence[ir.Node]]


def severities(suspects: Iterable[Suspect]) -> dict[ir.Node, float]:
    """Node -> what it does wrong alone, or less where it only stands beside such nodes.

    A value is saved only when both of its ends are kept, so neighbours come before everything else.
    """
    by_node = {suspect.node: suspect for suspect in suspects}
    found = {node: suspect.severity for node, suspect in by_node.items()}
    certain = {node for node, severity in found.items() if severity >= 1.0}
    for neighbours, steps in ((ir.Node.successors, _AFTER), (ir.Node.predecessors, _BEFORE)):
        edge, seen = certain, set(certain)
        for step in range(steps):
            edge = {other for node in edge for other in _beside(node, by_node, neighbours)} - seen
            seen |= edge
            for node in edge:
                found[node] = max(found[node], _BESIDE - _OFF * step)
    return found


def _beside(node: ir.Node, known: Mapping[ir.Node, Suspect], neighbours: Neighbours) -> set[ir.Node]:
    """The next nodes that were observed, through those that only hand on values."""
    found: set[ir.Node] = set()
    seen, waiting = {node}, [node]
    while waiting:
        for other in neighbours(waiting.pop()):
            if other in seen:
                continue
            seen.add(other)
            if other in known and known[other].observed:
                found.add(other)
            else:
                waiting.append(other)
    return found
