"""Precision constraints of a model: metadata of its nodes, which tools that preserve metadata pass on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import short_name, suggest
from ndld_flow.models.external_files import mentions
from ndld_flow.records.build import Constraint
from ndld_flow.records.layer_arithmetic import PRECISION_KEY, PRECISIONS
from ndld_flow.records.profile import Layer

if TYPE_CHECKING:
    import onnx


def read_constraints(model: Path) -> dict[str, str]:
    """Return node -> its requested precision, subgraphs included, in the model's order. Weights are not read.

    Raises `ModelError` for a model that cannot be read, and for an unknown precision.
    """
    from ndld_flow.models.files import read_proto

    constraints: dict[str, str] = {}
    for node in _nodes(read_proto(model).graph):
        for entry in node.metadata_props:
            if entry.key == PRECISION_KEY and node.name:
                check_precision(entry.value, node.name)
                constraints[node.name] = entry.value
    return constraints


def check_precision(precision: str, node: str) -> None:
    """Raise `ModelError` for an unknown precision: metadata may come from anywhere."""
    if precision not in PRECISIONS:
        raise ModelError(
            f"node {node!r} requests precision {precision!r} in its metadata {PRECISION_KEY!r}; "
            f"{suggest(precision, PRECISIONS)}"
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def requested_precisions(model: Path) -> Mapping[str, str]:
    """Return `read_constraints(model)`, without importing onnx for a model that has no constraints."""
    return read_constraints(model) if model.stat().st_size and mentions(model, PRECISION_KEY.encode()) else {}


def with_requested_precisions(layers: Sequence[Layer], requested: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return the layers, each with the precisions requested for its ONNX nodes."""
    if not requested:
        return tuple(layers)
    return tuple(
        layer.model_copy(
            update={"asked_precision": join_precisions(requested.get(node, "") for node in layer.onnx_nodes)}
        )
        for layer in layers
    )


def join_precisions(precisions: Iterable[str]) -> str:
    """Return `fp32`, or `fp32, fp16` if they differ; nodes without a constraint do not count."""
    return ", ".join(dict.fromkeys(filter(None, precisions)))


def ignored_notes(constraints: Sequence[Constraint]) -> list[str]:
    """Return a sentence for each reason why constraints were ignored: their number and the first of them."""
    first: dict[tuple[str, str], str] = {}
    counts = Counter((constraint.precision, constraint.outcome) for constraint in constraints if constraint.is_ignored)
    for constraint in constraints:
        first.setdefault((constraint.precision, constraint.outcome), constraint.node)
    return [
        f"{precision} {outcome} ({count} node{'' if count == 1 else 's'}, such as "
        f"{short_name(first[precision, outcome])!r})"
        for (precision, outcome), count in counts.most_common()
    ]
