"""The operators of a model, and the weights that belong to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ndld_flow.models.files import all_graphs, load_structure


def weight_bytes_by_operator(path: Path) -> Mapping[str, int]:
    """Return the bytes of the weights that nodes of each operator read; a weight that several read counts once.

    Raises `ModelError` as `load_structure` does.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    for graph in all_graphs(load_structure(path)):
        for node in graph:
            for value in node.inputs:
                tensor = value.const_value if value is not None else None
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[node.op_type] += tensor.nbytes
    return found


def operators_of(path: Path) -> frozenset[str]:
    """Return the operators of a model, those in bodies and functions too. Raises `ModelError` as above."""
    return frozenset(node.op_type for graph in all_graphs(load_structure(path)) for node in graph)


def has_grouped_convolutions(path: Path) -> bool:
    """Return whether a model has convolutions in groups, such as depthwise ones. Raises `ModelError` as above."""
    nodes = (node for graph in all_graphs(load_structure(path)) for node in graph)
    return any(node.op_type == "Conv" and node.attributes.get_int("group", 1) > 1 for node in nodes)
