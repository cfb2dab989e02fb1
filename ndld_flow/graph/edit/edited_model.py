"""The model that a list of operations edits, with lookups by name and selection."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, UnknownNameError, check_known
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.names import NamesInUse
from ndld_flow.graph.edit.node_groups import Neighbourhood, deep_nodes
from ndld_flow.graph.edit.schemas import Schemas
from ndld_flow.graph.edit.settings import Anchors, NodeSelect, as_names
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import all_graphs, load_model
from ndld_flow.models.input_shapes import suggest_tensor
from ndld_flow.models.nodes import node_label, op_name, precision_of, scopes_of, values_of

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
        attribute = node.attributes.get(name)
        if attribute is not None or wanted is None:
            return attribute is None if wanted is None else attribute is not None and has_value(attribute, wanted)
        operator = self._schemas.of(node)
        declared = () if operator is None else operator.attributes
        default = next((attribute.default for attribute in declared if attribute.name == name), None)
        return default is not None and _equal(list(default) if isinstance(default, tuple) else default, wanted)


def has_value(attribute: ir.Attr, wanted: JsonValue) -> bool:
    """Return whether an attribute has a value of a recipe."""
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
    raise UnknownNameError(f"there is no node or tensor {name!r}", name, known)


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


FIRST_WITH_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer need not be an input."""


@dataclass
class EditedModel:
    """A model while it is edited. Weights in external data stay on disk."""

    model: ir.Model
    path: Path
    """File of the original, for messages."""
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    """The recipe's `inputs:`."""
    others: Mapping[str, Path] = field(default_factory=dict)
    """Name of an earlier step, or of a model of the recipe -> model file, for settings marked `Reads(Onnx)`."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger(__name__))
    notes: list[str] = field(default_factory=list)
    """Sentences that are kept in the record."""
    failures: list[str] = field(default_factory=list)
    """Expectations of the recipe that the model does not meet: the step fails, and no further operation runs."""
    bare: set[ir.Value] = field(default_factory=set)
    """Tensors that are written without shape and type; outputs keep theirs, which ONNX requires."""
    _names: NamesInUse | None = field(default=None, init=False, repr=False)

    def note(self, sentence: str) -> None:
        """Add a sentence to the step's log and record."""
        self.notes.append(sentence)
        self.log.info("%s", sentence)

    def raise_ir_version(self, least: int) -> None:
        """Raise the model's IR version to a minimum, with a note."""
        if (self.model.ir_version or 0) < least:
            self.note(f"IR version {self.model.ir_version} -> {least}: the first that supports this")
            self.model.ir_version = least

    def other(self, name: str) -> ir.Model:
        """Load another model of the recipe, a new copy each time because operations change it."""
        return load_model(self.others[name])

    def graphs(self) -> Iterable[ir.Graph]:
        """Return all graphs: the main one, functions' bodies, and all subgraphs."""
        return all_graphs(self.model)

    def scopes(self) -> dict[str, ir.Graph]:
        """Return address -> graph, as defined by `models.nodes`."""
        return scopes_of(self.model)

    def graph(self, scope: str) -> ir.Graph:
        """Return the graph at an address. Raises `RequestError` with the nearest address."""
        known = self.scopes()
        check_known([scope], known, "there is no graph", " in this model", "it has no subgraphs or functions")
        return known[scope]

    def select_nodes(self, select: NodeSelect, allow_empty: bool = False) -> list[ir.Node]:
        """Return the selected nodes in the model's order. Raises `RequestError` for none, unless that is allowed."""
        return find_nodes(self.model, select, allow_empty)

    def node(self, name: str) -> ir.Node:
        """Return the node of a name, or the producer of a tensor of this name, anywhere in the model.

        Raises `RequestError` if there is none, or if several graphs have one.
        """
        nodes = [node for graph in self.graphs() for node in graph]
        named = [node for node in nodes if node.name == name]
        named = named or [node for node in nodes if any(value.name == name for value in node.outputs)]
        if not named:
            raise UnknownNameError(f"there is no node {name!r}", name, map(node_label, nodes))
        if len(named) > 1:
            raise RequestError(f"{len(named)} nodes are named {name!r}; rename them first, or select with `scope`")
        return named[0]

    def value(self, name: str, scope: str = "") -> ir.Value:
        """Return the tensor of a name in a graph: an input, an initializer, or a node's output, but no outer tensor.

        Raises `RequestError` with the nearest name.
        """
        known = {value.name or "": value for value in values_of(self.graph(scope))}
        if name not in known:
            where = f" in {scope!r}" if scope else ""
            raise RequestError(f"there is no tensor {name!r}{where}; {suggest_tensor(name, known.values())}")
        return known[name]

    def select_values(
        self, patterns: Sequence[str], allow_empty: bool = False, scope: str | None = None
    ) -> list[ir.Value]:
        """Return tensors whose names match one of the patterns, in the model's order; in one graph, or in all.

        Raises `RequestError` for a pattern that fits none, unless that is allowed.
        """
        graphs = self.graphs() if scope is None else [self.graph(scope)]
        values = [value for graph in graphs for value in values_of(graph) if value.name]
        chosen: set[ir.Value] = set()
        for pattern in patterns:
            fits = name_matcher(pattern)
            matching = [value for value in values if fits(value.name or "")]
            if not matching and not allow_empty:
                raise RequestError(f"no tensor has a name like {pattern!r}; {suggest_tensor(pattern, values)}")
            chosen.update(matching)
        return [value for value in values if value in chosen]

    def fresh_name(self, wish: str) -> str:
        """Return an unused name like `wish`, the same in every run.

        Generated names are C90 identifiers: characters other than letters, digits and `_` become `_`. A name that an
        operation assigns without this method must be added to `names()`.
        """
        if self._names is None:
            self._names = NamesInUse(self.model)
        return self._names.fresh(wish)

    def names(self) -> set[str]:
        """Return all names of nodes and tensors in the model; `fresh_name` avoids names that are added to it."""
        self._names = NamesInUse(self.model)
        return self._names.taken

    def forget_names(self) -> None:
        """Rebuild the set of names when it is next needed: between operations."""
        self._names = None
