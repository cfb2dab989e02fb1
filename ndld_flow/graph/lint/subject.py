"""The model under lint, as written: what is broken in it must be seen, so nothing repairs it on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.records.finding import Finding, Severity

MAX_OF_A_KIND = 50
"""A broken exporter makes the same mistake at every node: this many are told, and how many more there are."""


@dataclass(frozen=True)
class Subject:
    """One model, read in two ways."""

    path: Path
    proto: onnx.ModelProto
    model: ir.Model | None
    """None when it cannot be loaded; `load_error` says why."""
    load_error: str = ""

    @property
    def opset(self) -> int:
        """Version of the default domain; 0 when none is imported."""
        return next((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 0)

    def graphs(self) -> Iterator[onnx.GraphProto]:
        """The main graph and every subgraph in it."""
        return graphs_in(self.proto.graph)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Every node: of the main graph, of subgraphs, of functions."""
        for graph in self.graphs():
            yield from graph.node
        for function in self.proto.functions:
            for node in function.node:
                yield node
                for graph in subgraphs(node):
                    for inner in graphs_in(graph):
                        yield from inner.node


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_in(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Bodies directly in a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def about(check: str, severity: Severity, message: str, node: onnx.NodeProto | None = None) -> Finding:
    """A finding on a node, or on the whole model."""
    if node is None:
        return Finding(severity=severity, check=check, message=message)
    return Finding(severity=severity, check=check, message=message, node=node.name, op_type=node.op_type)


def shortened(findings: Sequence[Finding]) -> list[Finding]:
    """At most `MAX_OF_A_KIND` of one check, then how many more."""
    kept = list(findings[:MAX_OF_A_KIND])
    more = len(findings) - len(kept)
    if more > 0:
        last = findings[-1]
        kept.append(Finding(severity=last.severity, check=last.check, message=f"... and {more} more like these"))
    return kept
