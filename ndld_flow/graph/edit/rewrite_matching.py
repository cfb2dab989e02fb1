"""Search for the matches of a rewrite rule in a model."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.function_names import Imports
from ndld_flow.graph.edit.matched_values import constant_tensor, is_close, same_value
from ndld_flow.graph.edit.neighbourhood import Neighbourhood
from ndld_flow.graph.edit.node_pieces import Pieces, is_read_outside
from ndld_flow.graph.edit.pattern_matching import Match, Pairs, Pattern
from ndld_flow.graph.edit.rewrite_conditions import RewriteConditions
from ndld_flow.graph.edit.rewrite_text import RuleText
from ndld_flow.models.files import all_graphs
from ndld_flow.models.node_precision import precision_of

_COMMUTATIVE = frozenset(
    ("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")
)
"""Commutative operators of the default domain."""
_PERMUTED = 4
"""Maximum number of inputs that are matched in any order; a Sum of more is matched in the written order only."""
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Matching:
    """Options of the search for a pattern."""

    conditions: RewriteConditions = field(default_factory=RewriteConditions)
    tolerance: float = 1e-5
    """Relative tolerance of constants."""
    commutative: bool = True
    """Match commutative operators with their inputs in any order."""
    exact_attributes: bool = False
    """Match only nodes without attributes other than those in the pattern."""
    allow_shared: bool = False
    """Accept intermediate tensors that are read elsewhere; the nodes that produce them are kept."""


@dataclass(frozen=True)
class Rule:
    """A pattern, its replacement, and the options of the search."""

    pattern: RuleText
    replacement: RuleText
    matching: Matching = field(default_factory=Matching)


@dataclass
class Found:
    """Matches to replace, and the reasons why others are not."""

    matches: list[Match] = field(default_factory=list)
    attributes: list[dict[str, ir.Attr]] = field(default_factory=list)
    """For each match: variable -> attribute; absent attributes are missing."""
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Extent:
    """The part of a model that a rule is applied to."""

    nodes: Set[ir.Node] | None = None
    """Nodes that a match may contain; None for any."""
    limit: int | None = None
    """Maximum number of matches, from the first."""
    allow_empty: bool = False


def find_matches(model: ir.Model, rule: Rule, extent: Extent) -> Found:
    """Return the matches of a rule in the order of the model, which must be sorted; matches do not overlap.

    Raises `RequestError` for a pattern whose nodes are not connected.
    """
    around = Neighbourhood(model)
    search = _Search(rule, model, around, extent.nodes)
    pattern = Pattern(rule.pattern.nodes, search)
    if not pattern.is_connected:
        raise RequestError("`pattern`: its nodes are not connected; write two rules")
    for graph in all_graphs(model):
        search.opsets = search.imports.of(graph)
        for root in graph:
            if extent.limit is not None and len(search.found.matches) >= extent.limit:
                return search.found
            next((True for match in pattern.matches(root, around) if search.accept(match)), False)
    return search.found


class _Search:
    """Decides whether candidates match the pattern, and whether a match may be replaced."""

    def __init__(self, rule: Rule, model: ir.Model, around: Neighbourhood, chosen: Set[ir.Node] | None) -> None:
        self.found = Found()
        self.imports = Imports(model)
        self.opsets: Mapping[str, int] = model.opset_imports
        self._rule = rule
        self._matching = rule.matching
        self._around = around
        self._chosen = chosen
        self._pieces = Pieces(around, model)
        self._taken: set[ir.Node] = set()
        outputs = rule.pattern.outputs
        self._inner = [v for node in rule.pattern.nodes for v in node.outputs if v not in outputs]

    def alignments(self, node: ir.Node, candidate: ir.Node) -> Iterator[Pairs]:
        inputs, others = _inputs(node), _inputs(candidate)
        if not _same_operator(node, candidate) or len(inputs) != len(others):
            return
        if not self._attributes_fit(node, candidate):
            return
        permuted = self._matching.commutative and _is_commutative(node) and 1 < len(inputs) <= _PERMUTED
        for order in itertools.permutations(others) if permuted else [others]:
            pairs = list(zip(inputs, order, strict=True))
            if all(_keeps_rank(value, found, others) for value, found in pairs):
                yield pairs

    def may_be(self, value: ir.Value, candidate: ir.Value) -> bool:
        if value.const_value is not None:
            tensor = constant_tensor(candidate)
            return tensor is not None and is_close(value.const_value.numpy(), tensor, self._matching.tolerance)
        return self._matching.conditions.hold_for(value.name or "", candidate, self._matching.tolerance)

    def accept(self, match: Match) -> bool:
        """Accept a match if it may be replaced, and count the reason otherwise."""
        nodes = [match.nodes[node] for node in self._rule.pattern.nodes]
        if any(node in self._taken for node in nodes):
            return False
        if self._chosen is not None and not self._chosen >= set(nodes):
            return False
        attributes = self._variables(match)
        if attributes is None or not self._matching.conditions.allow(attributes, match, self._rule.pattern):
            return False
        reason = self._obstacle(match, nodes)
        if reason:
            self.found.refused[reason] += 1
            return False
        self._taken.update(nodes)
        self.found.matches.append(match)
        self.found.attributes.append(attributes)
        return True

    def _obstacle(self, match: Match, nodes: Sequence[ir.Node]) -> str:
        """Return the reason why a match is not replaced; empty when it is."""
        if len({precision_of(node) for node in nodes} - {""}) > 1:
            return "their nodes have different requested precisions"
        shared = any(is_read_outside(match.values[value], nodes, self._around) for value in self._inner)
        unnamed = [v for n, own in match.nodes.items() for v in own.outputs[len(n.outputs) :]]
        shared = shared or any(is_read_outside(value, nodes, self._around) for value in unnamed)
        if shared and not self._matching.allow_shared:
            return "an intermediate tensor is read elsewhere (`allow_shared: true` accepts that)"
        # with a single output that depends on all nodes, the replacement cannot create a cycle
        if (shared or len(self._rule.pattern.outputs) > 1) and not self._pieces.take(nodes):
            return "an outside node depends on one part of the match and another part depends on it"
        self._pieces.add(nodes)
        return ""

    def _attributes_fit(self, node: ir.Node, candidate: ir.Node) -> bool:
        for name, wanted in node.attributes.items():
            if not wanted.is_ref() and not same_value(wanted, self._attribute(candidate, name)):
                return False
        return not self._matching.exact_attributes or set(candidate.attributes) <= set(node.attributes)

    def _attribute(self, node: ir.Node, name: str) -> ir.Attr | None:
        """Return a node's attribute, or the default of the operator's schema."""
        if name in node.attributes:
            return node.attributes[name]
        version = self.opsets.get(node.domain, 1)
        try:
            default = onnx.defs.get_schema(node.op_type, version, node.domain).attributes[name].default_value
        except (onnx.defs.SchemaError, KeyError):
            return None
        return ir.serde.deserialize_attribute(default) if default.type else None

    def _variables(self, match: Match) -> dict[str, ir.Attr] | None:
        """Return variable -> attribute; None when a variable would have two values."""
        found: dict[str, ir.Attr] = {}
        for variable, places in self._rule.pattern.variables().items():
            given = [self._attribute(match.nodes[node], name) for node, name in places]
            if any(not same_value(given[0], each) for each in given[1:]):
                return None
            if given[0] is not None:
                found[variable] = given[0]
        return found


def _inputs(node: ir.Node) -> tuple[ir.Value | None, ...]:
    inputs = tuple(node.inputs)
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


def _same_operator(node: ir.Node, candidate: ir.Node) -> bool:
    domains = tuple("" if each.domain in DEFAULT_DOMAINS else each.domain for each in (node, candidate))
    return (node.op_type, node.overload, domains[0]) == (candidate.op_type, candidate.overload, domains[1])


def _is_commutative(node: ir.Node) -> bool:
    return node.op_type in _COMMUTATIVE and node.domain in DEFAULT_DOMAINS


def _keeps_rank(value: ir.Value | None, found: ir.Value | None, inputs: Sequence[ir.Value | None]) -> bool:
    """Return whether a constant of one element matches a number without raising the rank of the result."""
    if value is None or found is None or value.const_value is None or found.shape is None or len(found.shape) < 2:
        return True
    rank = len(found.shape)
    ranks = [len(each.shape) for each in inputs if each is not None and each is not found and each.shape is not None]
    return len(value.const_value.shape) == rank or any(other >= rank for other in ranks)
