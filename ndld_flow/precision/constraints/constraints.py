"""Precision constraints of a model: metadata of its nodes, which every tool hands on that hands on metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import suggest
from ndld_flow.models.files import read_proto
from ndld_flow.records.precision import PRECISION_KEY, PRECISIONS


def read_constraints(model: Path) -> dict[str, str]:
    """Node -> the precision it was asked to have, subgraphs included, in the model's order. Weights are not read.

    Raises `ModelError` for a model that cannot be read, and for a precision that there is not.
    """
    found: dict[str, str] = {}
    for node in _nodes(read_proto(model).graph):
        for entry in node.metadata_props:
            if entry.key == PRECISION_KEY and node.name:
                check_precision(entry.value, node.name)
                found[node.name] = entry.value
    return found


def check_precision(precision: str, node: str) -> None:
    """Raises `ModelError` for a precision that there is not: metadata may come from anywhere."""
    if precision not in PRECISIONS:
        raise ModelError(
            f"node {node!r} asks for precision {precision!r} in its metadata {PRECISION_KEY!r}; "
            f"{suggest(precision, PRECISIONS)}"
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
