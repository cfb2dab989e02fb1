"""How much speaks against each node before anything is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ndld_flow.backends.precision.evidence import Suspect

_BESIDE = (0.9, 0.8)
"""Severity of what stands next to a suspect, and next to that: a value is saved only when both of its ends are kept."""


def severities(suspects: Iterable[Suspect]) -> dict[ir.Node, float]:
    """Node -> what it does wrong alone, or less where it only stands beside such nodes."""
    by_node = {suspect.node: suspect for suspect in suspects}
    found = {node: suspect.severity for node, suspect in by_node.items()}
    edge = {node for node, severity in found.items() if severity >= 1.0}
    for severity in _BESIDE:
        edge = {beside for node in edge for beside in _beside(node, by_node)}
        for node in edge:
            found[node] = max(found[node], severity)
    return found


def _beside(node: ir.Node, known: Mapping[ir.Node, Suspect]) -> set[ir.Node]:
    """Nodes it reads from or writes to, through those that nothing was observed of."""
    found: set[ir.Node] = set()
    seen = {node}
    for neighbours in (ir.Node.predecessors, ir.Node.successors):
        waiting = [node]
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
