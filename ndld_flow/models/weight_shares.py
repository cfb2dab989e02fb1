"""The operators that a model's weights belong to."""

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
