"""Find the nodes that a selection means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.backends.editing.neighbourhood import Neighbourhood
from ndld_flow.backends.editing.selection_criteria import NodeCriteria
from ndld_flow.backends.models.node_precision import precision_of
from ndld_flow.backends.models.node_selection import op_name
from ndld_flow.backends.models.scopes import node_label, scopes_of
from ndld_flow.errors import RequestError
from ndld_flow.name_patterns import name_matcher
from ndld_flow.nearest import say_nearest

_CLOSE = 1e-6
"""Attributes are fp32; a recipe says 0.1."""


def fitting_nodes(model: ir.Model, select: NodeCriteria, allow_empty: bool = False) -> list[ir.Node]:
    """The nodes that a selection means, in the model's order.

    Raises `RequestError` when it means none and that is not allowed, and for an anchor (`before`, ...) that is nowhere.
    """
    found = [node for node in _in_scope(model, select) if _fits(node, select)]
    for region in _regions(model, select):
        found = [node for node in found if node in region]
    if select.exclude is not None:
        left_out = set(fitting_nodes(model, select.exclude, allow_empty=True))
        found = [node for node in found if node not in left_out]
    found = _at_position(found, select.position)
    if not found and not allow_empty:
        raise RequestError(_nothing(model, select))
    return found


@dataclass(frozen=True)
class _Matcher:
    """Whether a text fits one of several patterns; no pattern at all fits everything."""

    patterns: tuple[str, ...]

    def any(self, texts: Iterator[str]) -> bool:
        if not self.patterns:
            return True
        matchers = [name_matcher(pattern) for pattern in self.patterns]
        return any(fits(text) for text in texts for fits in matchers)


def _in_scope(model: ir.Model, select: NodeCriteria) -> Iterator[ir.Node]:
    for address, graph in scopes_of(model).items():
        if select.scope is None or _Matcher(select.scope).any(iter([address])):
            yield from graph


def _fits(node: ir.Node, select: NodeCriteria) -> bool:
    return (
        _Matcher(select.name).any(iter([node.name or ""]))
        and _Matcher(select.op_type).any(iter([op_name(node)]))
        and _Matcher(select.domain).any(iter([node.domain or "ai.onnx"]))
        and _Matcher(select.input).any(value.name or "" for value in node.inputs if value is not None)
        and _Matcher(select.output).any(value.name or "" for value in node.outputs)
        and (not select.precision or (precision_of(node) or "none") in select.precision)
        and all(has_attribute(node, name, wanted) for name, wanted in select.attributes.items())
    )


def has_attribute(node: ir.Node, name: str, wanted: JsonValue) -> bool:
    """Whether a node's attribute has a value; None: whether it has none of this name."""
    attribute = node.attributes.get(name)
    if attribute is None or wanted is None:
        return attribute is None and wanted is None
    if attribute.is_ref():
        return False
    return _equal(_plain(attribute), wanted)


def _plain(attribute: ir.Attr) -> object:
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy().tolist() if attribute.as_tensor().size <= 1024 else None
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _equal(found: object, wanted: JsonValue) -> bool:
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(_equal(a, b) for a, b in zip(found, wanted, strict=True))
    if isinstance(found, float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=_CLOSE)
    if isinstance(wanted, bool) and isinstance(found, int):
        return bool(found) == wanted
    if isinstance(found, bytes):
        found = found.decode(errors="replace")
    return found == wanted


def _regions(model: ir.Model, select: NodeCriteria) -> Iterator[set[ir.Node]]:
    if (select.between, select.before, select.after, select.near) == (None, None, None, None):
        return
    around = Neighbourhood(model)
    if select.between is not None:
        first, last = (_anchor(model, name) for name in select.between)
        yield around.between(first, last)
    if select.before is not None:
        yield around.before(_anchor(model, select.before))
    if select.after is not None:
        yield around.after(_anchor(model, select.after))
    if select.near is not None:
        yield around.near(_anchor(model, select.near), select.hops)


def _anchor(model: ir.Model, name: str) -> ir.Node | ir.Value:
    """The node or tensor of a name."""
    known: dict[str, ir.Node | ir.Value] = {}
    for graph in scopes_of(model).values():
        for node in graph:
            known.setdefault(node.name or "", node)
    if name in known:
        return known[name]
    for graph in scopes_of(model).values():
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)):
            known.setdefault(value.name or "", value)
    if name not in known:
        raise RequestError(f"there is no node or tensor {name!r}; {say_nearest(name, filter(None, known))}")
    return known[name]


def _at_position(found: list[ir.Node], position: str | int | None) -> list[ir.Node]:
    if position is None or not found:
        return found
    index = {"first": 0, "last": -1}.get(position, 0) if isinstance(position, str) else position
    return [found[index]] if -len(found) <= index < len(found) else []


def _nothing(model: ir.Model, select: NodeCriteria) -> str:
    """What was looked for, and the nearest of what there is."""
    nodes = [node for graph in scopes_of(model).values() for node in graph]
    known: Mapping[str, set[str]] = {
        "name": {node_label(node) for node in nodes},
        "op_type": {op_name(node) for node in nodes},
        "scope": set(scopes_of(model)),
    }
    for setting, names in known.items():
        for pattern in getattr(select, setting) or ():
            if not any(map(name_matcher(pattern), names)):
                return f"no node has the {setting} {pattern!r}; {say_nearest(pattern, filter(None, names))}"
    return "no node fits all that `select` says; `ndld-flow inspect MODEL` lists nodes by the same words"
