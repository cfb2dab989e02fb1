"""Outputs of ONNX Runtime that are no tensors, as named tensors: the elements of sequences, and the rows of maps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ndld_flow.models.tensors import Array

_PLACES = re.compile(r"(\[\d+\])+$")


def named_tensors(outputs: Iterable[tuple[str, Any]]) -> dict[str, Array | None]:
    """Return outputs as tensors by name; None for one that has no dense values.

    The elements of a sequence `s` are `s[0]`, `s[1]` and so on, and an empty one is an empty tensor `s`. Maps are a
    matrix: a row for each, and a column for each key in their order, NaN where a map lacks it; `s (keys)` are the keys.
    An optional output without a value is left out.
    """
    found: dict[str, Array | None] = {}
    for name, value in outputs:
        if isinstance(value, np.ndarray):
            found[name] = value
        elif isinstance(value, Mapping):
            found |= _of_maps(name, [value])
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            found |= _of_maps(name, value)
        elif isinstance(value, list) and value:
            found |= named_tensors((f"{name}[{index}]", each) for index, each in enumerate(value))
        elif value is not None:
            found[name] = np.empty(0, np.float32) if isinstance(value, list) else None
    return found


def sequence_of(element: str) -> str:
    """Return the name of the output that has an element: `s` for `s[0]`."""
    return _PLACES.sub("", element)


def _of_maps(name: str, rows: Sequence[Mapping[Any, Any]]) -> dict[str, Array | None]:
    keys = sorted({key for row in rows for key in row})
    try:
        values = np.array([[row.get(key, np.nan) for key in keys] for row in rows], np.float64)
    except (TypeError, ValueError):  # maps to text
        return {name: None}
    return {name: values, f"{name} (keys)": np.array(list(map(str, keys)), np.str_)}
