"""Faults of the operators of classic machine learning, whose weights are attributes: trees, linear models, scalers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import onnx_ir as ir

DOMAIN = "ai.onnx.ml"
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
    "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
    "LinearClassifier": ("coefficients", "intercepts"),
    "LinearRegressor": ("coefficients", "intercepts"),
    "SVMClassifier": ("coefficients", "rho"),
    "SVMRegressor": ("coefficients", "rho"),
    "Scaler": ("offset", "scale"),
}
"""Operator -> attributes with weights."""
_TENTH = 10
_MOST_COPIED = 2_000_000
"""Limit on the elements that all wrong copies of a node's largest attribute may have together."""


def wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kinds of faults of a node, each with its wrong attributes."""
    largest = max((len(each.value) for each in node.attributes.values() if _is_list(each)), default=1)
    yield from islice(_wrong_attributes(node), _MOST_COPIED // max(largest, 1))


def _is_list(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS)


def _wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in _WEIGHTS.get(node.op_type, ()):
        right = list(node.attributes.get_floats(name, ()))
        if not any(right):
            continue
        yield f"{name} scaled by 1.1", {name: [1.1 * value for value in right]}
        if right[::-1] != right:
            yield f"{name} reversed", {name: right[::-1]}
        first = max(range(len(right)), key=lambda i: abs(right[i])) % _TENTH
        wrong = [0.0 if i % _TENTH == first else value for i, value in enumerate(right)]
        yield f"a tenth of {name} zeroed", {name: wrong}
    modes = list(node.attributes.get_strings("nodes_modes", ()))
    if "BRANCH_LEQ" in modes:
        yield "< for <=", {"nodes_modes": ["BRANCH_LT" if mode == "BRANCH_LEQ" else mode for mode in modes]}
