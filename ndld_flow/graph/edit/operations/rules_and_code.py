"""Operations that follow rules or run code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name, suggest
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns, RewriteConditions, Select
from ndld_flow.step import DataFile, RunsCode

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.schemas import Imports


class Rewrite(Operation):
    """Replace every match of a pattern of nodes by other nodes; both are in ONNX's text form.

        rewrite:
          pattern: |
            (x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }
          replacement: |
            (x) => (y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }

    Subgraphs and local functions are searched too. The pattern's inputs match any tensors, the same name always the
    same one. An attribute in the pattern must have that value, explicitly or by default; `axis = $axis` matches any
    value, which `$axis` in the replacement stands for. A `Constant` matches constants of these numbers, in a node or an
    initializer; a single number also matches one element of any rank. Intermediate tensors must not be read elsewhere.
    Matches do not overlap, and replacements are not searched again. New nodes get the precision and other metadata that
    all replaced nodes share.
    """

    pattern: str
    """The nodes to find: `(inputs) => (outputs) { nodes }`."""
    replacement: str
    """The nodes to insert: they read some of the pattern's inputs, by name, and have the same number of outputs, in the
    same order."""
    where: RewriteConditions = RewriteConditions()
    """Further conditions."""
    select: Select | None = None
    """Only matches whose nodes are all selected."""
    tolerance: float = Field(default=1e-5, ge=0)
    """Relative tolerance of constants."""
    commutative: bool = True
    """Match Add, Mul, ... with their inputs in any order."""
    exact_attributes: bool = False
    """Match only nodes without attributes other than those in the pattern."""
    allow_shared: bool = False
    """Replace matches whose intermediate tensors are read elsewhere too; the nodes that produce these are kept."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of matches to replace, from the first."""
    allow_empty: bool = False
    """Succeed when nothing matches."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.rewriting import Extent, Matching, rewrite

        matching = Matching(self.where, self.tolerance, self.commutative, self.exact_attributes, self.allow_shared)
        chosen = None if self.select is None else frozenset(edited.select_nodes(self.select, self.allow_empty))
        extent = Extent(chosen, self.limit, self.allow_empty)
        return f"{rewrite(edited, (self.pattern, self.replacement), matching, extent)} matches replaced"


class ApplyRules(Operation):
    """Apply rewrite rules: onnxscript's own by name, or those of a Python file.

        apply_rules: {rules: ["successive_*", fuse_batchnorm_into_conv], omit: [successive_clip]}

    `rules` of the installed onnxscript are those in `onnxscript.rewriter.rules.common`, without the `_rule` at the end.
    At each node the first rule that matches is applied, in the order of their names, and the passes repeat until none
    matches. A file defines `rules`, an onnxscript `RewriteRuleSet` or a list of `RewriteRule`; it is Python code and
    runs only when the recipe is trusted. Rules that read weights, such as those that fuse BatchNormalization, load
    these weights.
    """

    keeps_outputs = True
    libraries: ClassVar[tuple[str, ...]] = ("onnxscript",)
    extra: ClassVar[str] = "rules"

    rules: Patterns = ()
    """Rules to apply, by name."""
    omit: Patterns = ()
    """Rules to skip."""
    file: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file with `rules`, which are applied after the others."""
    allow_empty: bool = False
    """Succeed when no rule matches."""

    @property
    def keeps_values(self) -> bool:
        return False  # nobody knows what a rule of a user does

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.rules and self.file is None:
            raise ValueError("give `rules`, or a `file` that defines some")
        patterns = (*self.rules, *self.omit)
        if patterns and EXTRAS["rules"].is_installed:  # the lack of it is another problem
            known = library_rules()
            for pattern in patterns:
                if not any(map(name_matcher(pattern), known)):
                    raise ValueError(f"there is no rule {pattern!r}; {suggest(pattern, known)}")
        return self

    def apply(self, edited: EditedModel) -> str:
        def fits(name: str, patterns: tuple[str, ...]) -> bool:
            return any(name_matcher(pattern)(name) for pattern in patterns)

        known = library_rules()
        chosen = [name for name in known if fits(name, self.rules) and not fits(name, self.omit)]
        done = apply_rules(edited, {name: known[name] for name in chosen})
        if self.file is not None:
            done += apply_rules(edited, rules_in_file(self.file), self.file)
        if not done and not self.allow_empty:
            raise RequestError("none of these rules matches anywhere in this model")
        return ", ".join(f"{name} {counted(count, 'time')}" for name, count in done.items()) or "no rule matches"


_ROUNDS = 10
"""Maximum number of passes: one rule can enable another, and rules that undo each other must terminate."""

Rules = Mapping[str, Sequence[Any]]
"""Name -> rules of onnxscript (`RewriteRule`)."""


def library_rules() -> Rules:
    """Return the rules of onnxscript by name, in the order of the names."""
    from onnxscript.rewriter.rules import common

    names = {re.sub("_rules?$", "", name): name for name in common.__all__}
    return {short: _listed(getattr(common, name)) for short, name in sorted(names.items())}


def rules_in_file(path: Path) -> Rules:
    """Return the rules that a Python file defines as `rules`, each under its own name.

    Raises `RequestError` if the file fails or has no such rules.
    """
    from onnxscript.rewriter.pattern import RewriteRule

    from ndld_flow.base.user_code import load_user_module, locating_errors

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

    from ndld_flow.base.user_code import locating_errors
    from ndld_flow.graph.edit.graph_edits import known_shapes
    from ndld_flow.graph.edit.schemas import Imports
    from ndld_flow.models.files import all_graphs

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
        import onnx_ir as ir

        from ndld_flow.models.nodes import precision_of

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
    from ndld_flow.models.element_types import schema_of

    if node.domain:
        return True
    schema = schema_of(node.op_type, imports.get("", 1))
    return (
        schema is not None and len(node.inputs) <= schema.max_input and set(node.attributes) <= set(schema.attributes)
    )


def _listed(given: Any) -> list[Any]:  # noqa: ANN401
    """Return the rules of a RewriteRule, a RewriteRuleSet, a list of them, or a function that returns one of these."""
    from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet

    if isinstance(given, RewriteRule):
        return [given]
    if isinstance(given, RewriteRuleSet):
        return list(given.rules)
    return _listed(given()) if callable(given) else list(given)


class RunPython(Operation):
    """Run a Python function that changes the model, for edits that no operation covers.

    run_python: {file: my_edit.py, arguments: {factor: 2}}

    The function gets the model, an `onnx_ir.Model` whose external data stay on disk, and the arguments by name. It
    changes the model in place or returns another one, and the result is checked like that of any operation. Every
    file in the file's folder and below is part of the step's key. It runs only when the recipe is trusted.
    """

    file: Annotated[Path, DataFile(), RunsCode()]
    """The Python file."""
    function: str = "edit"
    """Name of the function, `def edit(model, ...)`."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Arguments, in addition to the model."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.base.user_code import load_user_module, locating_errors

        module = load_user_module(self.file)
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        check_known([self.function], known, f"{self.file}: there is no function", " in it")
        with locating_errors(self.file):
            returned = getattr(module, self.function)(edited.model, **self.arguments)
        if isinstance(returned, ir.Model):
            edited.model = returned
        if not isinstance(edited.model.graph, ir.Graph):
            raise RequestError(f"{self.file}: {self.function} leaves a model without a graph")
        if not isinstance(returned, ir.Model | str | None):
            raise RequestError(
                f"{self.file}: {self.function} returned {type(returned).__name__}; it may return an onnx_ir.Model, a "
                "string that describes the change, or nothing"
            )
        description = short_name(returned) if isinstance(returned, str) else ""
        return description or f"{self.function} of {self.file.name} ran"
