"""Nodes that match a selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.names import values_of
from ndld_flow.graph.edit.node_groups import Neighbourhood, deep_nodes
from ndld_flow.graph.edit.schemas import Schemas
from ndld_flow.graph.edit.settings import Anchors, NodeSelect, as_names
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.nodes import node_label, op_name, precision_of, scopes_of

_CLOSE = 1e-6
"""Relative tolerance: attributes are fp32, a recipe has 0.1."""
_MAX_COMPARED = 1024
"""Tensor attributes with more elements equal no value of a recipe."""
_Scopes = Mapping[str, ir.Graph]


def find_nodes(model: ir.Model, select: NodeSelect, allow_empty: bool = False) -> list[ir.Node]:
    """Return the selected nodes in the model's order.

    Raises `RequestError` if no node is selected, unless that is allowed, and for an anchor (`before`, ...) that does
    not exist or is in several graphs.
    """
    scopes = scopes_of(model)
    searched = scopes
    if select.scope is not None:
        in_scope = _Fits(select.scope)
        searched = {address: graph for address, graph in scopes.items() if in_scope((address,))}
    fits = _NodeFits(model, select)
    selected = [node for graph in searched.values() for node in graph if fits(node)]
    for region in _regions(model, select, [searched, scopes]):
        selected = [node for node in selected if node in region]
    if select.exclude is not None:
        excluded = set(find_nodes(model, select.exclude, allow_empty=True))
        selected = [node for node in selected if node not in excluded]
    if select.position is not None:
        position = {"first": 0, "last": -1}.get(str(select.position), select.position)
        selected = [node for index, node in enumerate(selected) if position in (index, index - len(selected))]
    if not selected and not allow_empty:
        raise RequestError(_unmatched_criterion(scopes, select))
    return selected


class _Fits:
    """Predicate: one of several texts matches one of several patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names = frozenset(filter(is_plain, patterns))
        self._matchers = [name_matcher(pattern) for pattern in patterns if not is_plain(pattern)]

    def __call__(self, texts: Iterable[str]) -> bool:
        return any(text in self._names or any(fits(text) for fits in self._matchers) for text in texts)


class _NodeFits:
    """Predicate on a single node. Patterns are compiled once, and absent criteria are not evaluated."""

    def __init__(self, model: ir.Model, select: NodeSelect) -> None:
        criteria: list[tuple[Sequence[str], Callable[[ir.Node], Iterable[str]]]] = [
            (select.op_type, lambda node: (op_name(node),)),
            (select.domain, lambda node: (node.domain or "ai.onnx",)),
            (select.name, lambda node: (node_label(node),)),
            (select.precision, lambda node: (precision_of(node) or "none",)),
            (select.input, lambda node: [value.name or "" for value in node.inputs if value is not None]),
            (select.output, lambda node: [value.name or "" for value in node.outputs if value.name]),
        ]
        self._texts = [(_Fits(patterns), texts) for patterns, texts in criteria if patterns]
        self._attributes = select.attributes
        self._schemas = Schemas(model)

    def __call__(self, node: ir.Node) -> bool:
        return all(fits(texts(node)) for fits, texts in self._texts) and all(
            self._has(node, name, wanted) for name, wanted in self._attributes.items()
        )

    def _has(self, node: ir.Node, name: str, wanted: JsonValue) -> bool:
        """Return whether an attribute, set or by default, has a value; None means that it is not set."""
        if wanted is None or name in node.attributes:
            return has_attribute(node, name, wanted)
        operator = self._schemas.of(node)
        declared = () if operator is None else operator.attributes
        default = next((attribute.default for attribute in declared if attribute.name == name), None)
        return default is not None and _equal(list(default) if isinstance(default, tuple) else default, wanted)


def has_attribute(node: ir.Node, name: str, wanted: JsonValue) -> bool:
    """Return whether a node sets an attribute to a value; for None, whether it does not set it."""
    attribute = node.attributes.get(name)
    if attribute is None or wanted is None:
        return attribute is None and wanted is None
    if attribute.is_ref():
        return False
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        value = tensor.numpy().tolist() if tensor.size <= _MAX_COMPARED else None
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = list(value)
    return _equal(value, wanted)


def _equal(value: object, wanted: JsonValue) -> bool:
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(_equal(a, b) for a, b in zip(value, wanted, strict=True))
    if isinstance(value, float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted, rel_tol=_CLOSE)
    if isinstance(wanted, bool) and isinstance(value, int):
        return bool(value) == wanted
    if isinstance(value, int) and isinstance(wanted, str):
        return value == _dtype_number(wanted)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value == wanted


def _dtype_number(word: str) -> int | None:
    """Return the number that ONNX uses for an element type such as `float16`, or None."""
    try:
        return int(parse_dtype(word))
    except RequestError:
        return None


def _regions(model: ir.Model, select: NodeSelect, searched: Sequence[_Scopes]) -> Iterator[set[ir.Node]]:
    if (select.between, select.before, select.after, select.near) == (None, None, None, None):
        return
    around = Neighbourhood(model)
    if select.between is not None:
        first, last = (_anchors(searched, names) for names in select.between)
        yield set[ir.Node]().union(*(around.between(start, end) for start in first for end in last))
    if select.before is not None:
        yield set[ir.Node]().union(*map(around.before, _anchors(searched, select.before)))
    if select.after is not None:
        anchors = _anchors(searched, select.after)
        after = set[ir.Node]().union(*map(around.after, anchors))
        if len(anchors) > 1:
            # Scales of a detector are computed from each other: what leads to one of them is not after all of them.
            earlier = {anchor for anchor in anchors if isinstance(anchor, ir.Node)}.union(*map(around.before, anchors))
            after -= set(deep_nodes(earlier))
        yield after
    if select.near is not None:
        yield set[ir.Node]().union(*(around.near(anchor, select.hops) for anchor in _anchors(searched, select.near)))


def _anchors(searched: Sequence[_Scopes], names: Anchors) -> list[ir.Node | ir.Value]:
    return [_anchor(searched, name) for name in as_names(names)]


def _anchor(searched: Sequence[_Scopes], name: str) -> ir.Node | ir.Value:
    """Return the node or tensor of a name, in the first of the graphs or else anywhere. Nodes take precedence."""
    for scopes in searched:
        nodes = [node for graph in scopes.values() for node in graph if node.name == name]
        values = [value for graph in scopes.values() for value in values_of(graph) if value.name == name]
        named: Sequence[ir.Node | ir.Value] = nodes or values
        if len(named) > 1:
            what = "nodes" if nodes else "tensors"
            raise RequestError(f"{len(named)} {what} are named {name!r}; choose one with `scope`")
        if named:
            return named[0]
    graphs = searched[-1].values()
    known = [holder.name for graph in graphs for holder in (*graph, *values_of(graph)) if holder.name]
    raise RequestError(f"there is no node or tensor {name!r}; {suggest(name, known)}")


def _unmatched_criterion(scopes: _Scopes, select: NodeSelect) -> str:
    """Return the criterion that matches nothing, with the nearest name."""
    nodes = [node for graph in scopes.values() for node in graph]
    known: Mapping[str, Iterable[str]] = {
        "name": dict.fromkeys(map(node_label, nodes)),
        "op_type": dict.fromkeys(map(op_name, nodes)),
        "domain": dict.fromkeys(node.domain or "ai.onnx" for node in nodes),
        "scope": scopes,
        "input": dict.fromkeys(value.name or "" for node in nodes for value in node.inputs if value is not None),
        "output": dict.fromkeys(value.name or "" for node in nodes for value in node.outputs),
        "precision": dict.fromkeys(precision_of(node) or "none" for node in nodes),
    }
    for setting, names in known.items():
        for pattern in getattr(select, setting) or ():
            if not any(map(name_matcher(pattern), names)):
                return f"no node has the {setting} {pattern!r}; {suggest(pattern, filter(None, names))}"
    return "no node meets all criteria of `select`; `ndld-flow inspect MODEL` lists nodes by the same criteria"
