"""Faults of the operators of classic machine learning, whose weights are attributes: trees, linear models, scalers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir

DOMAIN = "ai.onnx.ml"
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
    "TreeEnsemble": ("nodes_splits", "leaf_weights"),
    "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
    "LinearClassifier": ("coefficients", "intercepts"),
    "LinearRegressor": ("coefficients", "intercepts"),
    "SVMClassifier": ("coefficients", "rho"),
    "SVMRegressor": ("coefficients", "rho"),
    "Scaler": ("offset", "scale"),
}
"""Operator -> attributes with weights."""
_LISTS = (ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS)
_TENTH = 10
_MOST_COPIED = 2_000_000
"""Limit on the elements that all wrong copies of a node's largest attribute may have together."""


def wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kinds of faults of a node, each with its wrong attributes."""
    largest = max((len(values_of(each)) for each in node.attributes.values()), default=1)
    yield from islice(_wrong_attributes(node), _MOST_COPIED // max(largest, 1))


def values_of(attribute: ir.Attr) -> Sequence[Any]:
    """Return the elements of an attribute that is a list or a tensor; none of others."""
    if attribute.type == ir.AttributeType.TENSOR:
        elements: Sequence[Any] = attribute.as_tensor().numpy().reshape(-1).tolist()
        return elements
    return attribute.value if attribute.type in _LISTS else ()


def _wrong_attributes(node: ir.Node) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in _WEIGHTS.get(node.op_type, ()):
        right = list(values_of(node.attributes[name])) if name in node.attributes else []
        if not any(right):
            continue
        yield f"{name} scaled by 1.1", {name: _like(node, name, [1.1 * value for value in right])}
        if right[::-1] != right:
            yield f"{name} reversed", {name: _like(node, name, right[::-1])}
        first = max(range(len(right)), key=lambda i: abs(right[i])) % _TENTH
        wrong = [0.0 if i % _TENTH == first else value for i, value in enumerate(right)]
        yield f"a tenth of {name} zeroed", {name: _like(node, name, wrong)}
    modes = values_of(node.attributes["nodes_modes"]) if "nodes_modes" in node.attributes else ()
    for at_most, less in (("BRANCH_LEQ", "BRANCH_LT"), (0, 1)):  # `TreeEnsemble` has numbers
        if at_most in modes:
            wrong_modes = [less if mode == at_most else mode for mode in modes]
            yield "< for <=", {"nodes_modes": _like(node, "nodes_modes", wrong_modes)}


def _like(node: ir.Node, name: str, values: Sequence[Any]) -> Any:  # noqa: ANN401 - a list or a tensor
    """Return values of an attribute in the form that it has."""
    attribute = node.attributes[name]
    if attribute.type != ir.AttributeType.TENSOR:
        return values
    return ir.tensor(np.array(values, attribute.as_tensor().numpy().dtype))
