"""The model under lint, exactly as written: nothing repairs it, so that mistakes stay visible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.records.inspection import Finding, Severity

MAX_OF_A_KIND = 50
"""Findings of one check that are listed; a broken exporter repeats a mistake at every node."""


@dataclass(frozen=True)
class Subject:
    """One model, as a protobuf message and as loaded."""

    path: Path
    proto: onnx.ModelProto
    model: ir.Model | None
    """None if it cannot be loaded; `load_error` has the reason."""
    load_error: str = ""

    @property
    def opset(self) -> int:
        """Version of the default domain; 0 if none is imported."""
        return next((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 0)

    def graphs(self) -> Iterator[onnx.GraphProto]:
        """Yield the main graph and every subgraph in it."""
        return graphs_in(self.proto.graph)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield every node of the main graph, subgraphs and functions."""
        for graph in self.graphs():
            yield from graph.node
        for function in self.proto.functions:
            for node in function.node:
                yield node
                for graph in subgraphs(node):
                    for inner in graphs_in(graph):
                        yield from inner.node


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_in(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the direct subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def about(check: str, severity: Severity, message: str, node: onnx.NodeProto | None = None) -> Finding:
    """Return a finding on a node, or on the whole model."""
    if node is None:
        return Finding(severity=severity, check=check, message=message)
    return Finding(severity=severity, check=check, message=message, node=node.name, op_type=node.op_type)


def shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Return at most `MAX_OF_A_KIND` findings, and one that counts the rest."""
    kept = list(findings[:MAX_OF_A_KIND])
    more = len(findings) - len(kept)
    if more > 0:
        last = findings[-1]
        kept.append(Finding(severity=last.severity, check=last.check, message=f"... and {more} more like these"))
    return kept
