"""Rewrite rules of onnxscript, its own and users', applied without losing names and precisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.user_code import load_user_module, locating_errors
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.functions import Imports
from ndld_flow.graph.edit.graph_edits import known_shapes
from ndld_flow.graph.sanitize.edits import is_standard
from ndld_flow.models.files import all_graphs
from ndld_flow.models.node_precision import precision_of

_ROUNDS = 10
"""Maximum number of passes: one rule can enable another, and rules that undo each other must end."""

Rules = Mapping[str, Sequence[Any]]
"""Name -> rules of onnxscript (`RewriteRule`)."""


def library_rules(names: Sequence[str]) -> Rules:
    """Return rules of onnxscript by name. Raises `RequestError` for one that the installed version does not have."""
    from onnxscript.rewriter.rules import common

    rules: dict[str, Sequence[Any]] = {}
    for name in names:
        rule = getattr(common, f"{name}_rule", None) or getattr(common, f"{name}_rules", None)
        if rule is None:
            raise RequestError(f"the installed onnxscript has no rule {name!r}: install the newest one")
        rules[name] = _listed(rule)
    return rules


def rules_in_file(path: Path) -> Rules:
    """Return the rules that a Python file defines as `rules`, each under its own name.

    Raises `RequestError` when the file fails or has no such rules.
    """
    from onnxscript.rewriter.pattern import RewriteRule

    given = getattr(load_user_module(path), "rules", None)
    with locating_errors(path):
        rules = [] if given is None else _listed(given)
    if not rules or not all(isinstance(rule, RewriteRule) for rule in rules):
        raise RequestError(f"{path}: it must have `rules`: onnxscript's RewriteRuleSet, or a list of RewriteRule")
    named: dict[str, list[Any]] = {}
    for rule in rules:
        named.setdefault(rule.name or "rule", []).append(rule)
    return named


def apply_rules(edited: EditedModel, rules: Rules, path: Path | None = None) -> Counter[str]:
    """Apply rules, at each node the first that matches, until none matches; returns rule -> number of matches.

    Raises `RequestError` for an error in a rule of the file at `path`, with the line.
    """
    from onnxscript.rewriter.pattern import RewriteRuleSet

    if not rules:
        return Counter()
    old_names = {node: node.name for graph in all_graphs(edited.model) for node in graph}
    progress = _Progress(edited, Imports(edited.model))
    guarded = [_Guarded(rule, name, progress) for name, some in rules.items() for rule in some]
    with known_shapes(edited.model), locating_errors(path or Path("onnxscript")):
        for _ in range(_ROUNDS):
            before = progress.done.total()
            progress.new.clear()
            RewriteRuleSet(guarded).apply_to_model(edited.model)
            edited.forget_names()
            if progress.done.total() == before:
                break
        else:
            edited.note(f"rules still match after {_ROUNDS} passes: some undo the changes of others")
    for node in (node for graph in all_graphs(edited.model) for node in graph if node in old_names):
        node.name = old_names[node]  # onnxscript names unnamed nodes
    for name in sorted(progress.too_new):
        edited.note(f"rule {name} matches, but produces operators that the model's opset does not have")
    return progress.done


@dataclass
class _Progress:
    """Progress of the passes."""

    edited: EditedModel
    imports: Imports
    new: set[ir.Node] = field(default_factory=set)
    """Nodes that were added in this pass; the next one visits them."""
    done: Counter[str] = field(default_factory=Counter)
    too_new: set[str] = field(default_factory=set)
    """Rules that produce operators that the model's opset does not have."""


class _Guarded:
    """A rule that skips nodes of different requested precisions, and assigns unique names.

    onnxscript overwrites an initializer whose name it chooses for a new one, keeps the first of several metadata, names
    new nodes `node`, produces operators that the model's opset does not have, and never ends with a rule that matches
    its own result.
    """

    def __init__(self, rule: Any, name: str, progress: _Progress) -> None:  # noqa: ANN401 - onnxscript has no types
        self._rule = rule
        self._word = name
        self._progress = progress
        self._operator = _last_operator(rule)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: ir.Graph, node: ir.Node, **options: object) -> Any:  # noqa: ANN401
        may_fit = self._operator in (None, (node.domain, node.op_type))
        result = self._rule.try_rewrite(model, graph, node, **options) if may_fit else None
        if result is None or not self._progress.new.isdisjoint(result.match.nodes):
            return None
        if result.new_initializers and isinstance(graph, ir.Function):
            return None  # functions have no initializers
        if len({precision_of(each) for each in result.match.nodes} - {""}) > 1:
            return None
        imports = self._progress.imports.of(graph.graph if isinstance(graph, ir.Function) else graph)
        if not all(_exists(each, imports) for each in result.new_nodes):
            self._progress.too_new.add(self._word)
            return None
        self._progress.new.update(result.new_nodes)
        self._progress.done[self._word] += 1
        label = node.name or node.op_type
        for new in result.new_nodes:
            new.name = self._progress.edited.fresh_name(f"{label}_{new.op_type}")
            for value in new.outputs:
                value.name = self._progress.edited.fresh_name(f"{new.name}_output")
        for value in result.new_initializers:
            value.name = self._progress.edited.fresh_name(value.name or f"{label}_constant")
        return result


def _last_operator(rule: Any) -> tuple[str, str] | None:  # noqa: ANN401
    """Return domain and type of the node at which a rule is tried, where its pattern gives one.

    onnxscript searches the whole graph at each node before it checks this, for patterns of several outputs.
    """
    from onnxscript.rewriter.pattern import SimplePatternMatcher

    matcher = getattr(rule, "_matcher", None)
    if not isinstance(matcher, SimplePatternMatcher) or not matcher.pattern.output_nodes:
        return None  # only this one is known to begin with the pattern's first output
    named = matcher.pattern.output_nodes[0].op_identifier()
    return None if named is None else named[:2]


def _exists(node: ir.Node, imports: Mapping[str, int]) -> bool:
    """Return whether a node exists in its opset; unknown domains are accepted."""
    if not is_standard(node):
        return True
    try:
        schema = onnx.defs.get_schema(node.op_type, imports.get("", 1), "")
    except onnx.defs.SchemaError:
        return False
    return len(node.inputs) <= schema.max_input and set(node.attributes) <= set(schema.attributes)


def _listed(given: Any) -> list[Any]:  # noqa: ANN401
    """Return the rules of a RewriteRule, a RewriteRuleSet, a list of them, or a function that returns one of these."""
    from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

    if isinstance(given, RewriteRule):
        return [given]
    if isinstance(given, RewriteRuleSet):
        return list(given.rules)
    return _listed(given()) if callable(given) else list(given)
