"""Rewrite rules from text: find a pattern everywhere in a model and put a replacement in its place.

onnxscript's rewriter is not used for these. Its patterns are Python functions, which `apply_rules` takes; of what a
recipe asks it lacks much (0.7.2): both orders of commutative operators are tried by copying the rule for each
combination (14 Adds and Muls are 16,384 rules, six seconds before the first node is looked at), a constant is matched
only as a tensor of rank 0, patterns with several outputs try all combinations of nodes, inner tensors that are read in
subgraphs or handed out by them do not count, and there is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.cloning import copy_nodes
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.function_names import Imports
from ndld_flow.graph.edit.node_pieces import deep_nodes, hand_over
from ndld_flow.graph.edit.pattern_matching import Match
from ndld_flow.graph.edit.removal import prune_values
from ndld_flow.graph.edit.rewrite_matching import DEFAULT_DOMAINS, Extent, Found, Matching, Rule, find_matches
from ndld_flow.graph.edit.rewrite_text import parse_pattern, parse_replacement
from ndld_flow.graph.edit.surgeries.rewriting import known_shapes
from ndld_flow.models.files import all_graphs
from ndld_flow.models.scopes import node_label


def rewrite(edited: EditedModel, texts: tuple[str, str], matching: Matching, extent: Extent) -> int:
    """Replace all matches of a rule, given as texts of pattern and replacement; returns their number.

    Raises `RequestError` for texts that cannot be read, conditions that do not fit the pattern, and when no place fits
    and that is not allowed.
    """
    pattern = parse_pattern(texts[0])
    rule = Rule(pattern, parse_replacement(texts[1], pattern), matching)
    matching.conditions.check(pattern)
    for graph in (edited.model.graph, *(function.graph for function in edited.model.functions.values())):
        graph.sort()
    with known_shapes(edited.model) if matching.conditions.need_shapes else nullcontext():
        found = find_matches(edited.model, rule, extent)
    left = "; ".join(f"{count} skipped: {reason}" for reason, count in sorted(found.refused.items()))
    if not found.matches and not extent.allow_empty:
        raise RequestError(f"the pattern has no match in this model{f' that may be replaced; {left}' if left else ''}")
    replace_matches(edited, rule, found)
    if left:
        edited.note(f"matches of the pattern: {len(found.matches)} replaced; {left}")
    return len(found.matches)


def replace_matches(edited: EditedModel, rule: Rule, found: Found) -> None:
    """Replace matches; the new tensors get the names and readers of the old ones."""
    graphs, imports = list(all_graphs(edited.model)), Imports(edited.model)
    domains = {node.domain: 1 for node in deep_nodes(rule.replacement.nodes) if node.domain not in DEFAULT_DOMAINS}
    moved: dict[ir.Value, ir.Value] = {}
    touched: dict[ir.Graph, None] = {}
    for match, attributes in zip(found.matches, found.attributes, strict=True):
        graph = match.nodes[rule.pattern.nodes[-1]].graph
        assert isinstance(graph, ir.Graph)
        _Replacing(edited, rule, match, moved, graphs).put(graph, attributes)
        imports.add(graph, domains)
        touched[graph] = None
    for graph in touched:
        graph.sort()


class _Replacing:
    """The replacement of one match."""

    def __init__(
        self, edited: EditedModel, rule: Rule, match: Match, moved: dict[ir.Value, ir.Value], graphs: list[ir.Graph]
    ) -> None:
        self._edited = edited
        self._rule = rule
        self._match = match
        self._moved = moved
        """Old tensor -> the tensor that replaced it, from earlier matches."""
        self._graphs = graphs
        self._nodes = [match.nodes[node] for node in rule.pattern.nodes]
        self._label = node_label(self._nodes[-1])

    def put(self, graph: ir.Graph, attributes: Mapping[str, ir.Attr]) -> None:
        rule, match = self._rule, self._match
        by_name = {value.name: self._now(match.values[value]) for value in rule.pattern.inputs if value in match.values}
        read = {value: by_name.get(value.name) for value in rule.replacement.inputs}
        copies = copy_nodes(rule.replacement.nodes, read, attributes)
        metadata = self._metadata()
        for node in copies.nodes:
            node.metadata_props.update({**metadata, **node.metadata_props})
        graph.insert_before(self._nodes[-1], copies.nodes)
        self._name(copies.nodes)
        olds = [match.values[value] for value in rule.pattern.outputs]
        for old, value in zip(olds, rule.replacement.outputs, strict=True):
            new = copies.values.get(value)
            self._hand_over(old, new, read.get(value), graph)
        prune_values([*olds, *(value for node in self._nodes for value in node.outputs)])
        for old in olds:
            if old.producer() is not None and old.producer().graph is not None:  # type: ignore[union-attr]
                old.name = self._edited.fresh_name(f"{self._label}_before")

    def _now(self, value: ir.Value) -> ir.Value:
        while value in self._moved:
            value = self._moved[value]
        return value

    def _name(self, nodes: Sequence[ir.Node]) -> None:
        for node in deep_nodes(nodes):
            node.name = self._edited.fresh_name(f"{self._label}_{node.op_type}")
            for value in node.outputs:
                value.name = self._edited.fresh_name(f"{self._label}_{value.name}")

    def _hand_over(self, old: ir.Value, new: ir.Value | None, given: ir.Value | None, graph: ir.Graph) -> None:
        if new is None:  # the replacement returns an input; a graph output needs a separate node
            if given is None:
                raise RequestError(f"at {self._label!r} the replacement returns an omitted input")
            if not any(output is old for each in self._graphs for output in each.outputs):
                old.replace_all_uses_with(given)
                self._moved[old] = given
                return
            copy = ir.node("Identity", [given])
            graph.insert_before(self._nodes[-1], copy)
            self._name([copy])
            new = copy.outputs[0]
        hand_over(old, new, set(self._nodes), self._graphs)
        self._moved[old] = new

    def _metadata(self) -> dict[str, str]:
        """Return the metadata that all nodes with the key share; precisions always agree."""
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            for key, value in node.metadata_props.items():
                found.setdefault(key, set()).add(value)
        return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}
