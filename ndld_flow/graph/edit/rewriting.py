"""Rewrite rules in ONNX's text form: `(x) => (y) { s = Sigmoid(x) y = Mul(x, s) }`.

An attribute `axis = $axis` in a pattern matches any value, which `$axis` in the replacement inserts.

onnxscript's rewriter is not used for these rules; `apply_rules` runs its rules. In version 0.7.2 it tries both orders
of commutative operators by copying the rule for each combination (14 Adds and Muls are 16,384 rules, six seconds before
the first node is compared), matches a constant only as a tensor of rank 0, tries all combinations of nodes for patterns
with several outputs, ignores uses of intermediate tensors in subgraphs and as their outputs, and has no limit.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from ndld_flow.base.errors import RequestError, UnknownNameError, check_known
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.edited_model import EditedModel, has_value
from ndld_flow.graph.edit.graph_edits import known_shapes, prune_values
from ndld_flow.graph.edit.node_groups import (
    Neighbourhood,
    Pieces,
    copy_nodes,
    deep_nodes,
    is_read_outside,
    replace_uses,
)
from ndld_flow.graph.edit.pattern_matching import Match, Pairs, Pattern, has_shape, is_close, is_numeric, same_value
from ndld_flow.graph.edit.schemas import Imports
from ndld_flow.graph.edit.settings import RewriteConditions
from ndld_flow.graph.edit.value_grammar import parse_dtype
from ndld_flow.models.element_types import schema_of
from ndld_flow.models.files import all_graphs
from ndld_flow.models.nodes import (
    constant_of,
    fixed_tensor,
    graph_of,
    inputs_given,
    is_constant,
    node_label,
    own_subgraphs,
    precision_of,
)

_HEADER = '<ir_version: 8, opset_import: []> m () => () {} <domain: "rule", opset_import: ["" : 1]> Rule\n'
"""The parser ignores text after a single function, but not after a function in a model."""
_VARIABLE = re.compile(r"=\s*\$([A-Za-z_]\w*)")
_PLACE = re.compile(r"line: (\d+)")
_COMMUTATIVE = frozenset(
    ("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")
)
"""Commutative operators of the default domain."""
_PERMUTED = 4
"""Maximum number of inputs that are matched in any order; a Sum of more is matched in the written order only."""


@dataclass(frozen=True)
class RuleText:
    """The pattern or the replacement of a rule."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]
    """The nodes; a pattern's are without its constants."""

    def input(self, name: str, setting: str) -> ir.Value:
        """Return the input of a name. Raises `RequestError` with the nearest one."""
        known = {value.name or "": value for value in self.inputs}
        check_known([name], known, f"`{setting}`:", " is not an input of the pattern")
        return known[name]

    def variables(self) -> dict[str, list[tuple[ir.Node, str]]]:
        """Return variable -> the nodes and attributes that refer to it."""
        places: dict[str, list[tuple[ir.Node, str]]] = {}
        for node in self.nodes:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    places.setdefault(attribute.ref_attr_name or "", []).append((node, attribute.name))
        return places


def parse_pattern(text: str) -> RuleText:
    """Parse a pattern. Its constants become tensors without a producer, one for each use.

    Raises `RequestError` for text that cannot be read, and for patterns that could match nothing or anything.
    """
    side = _parse(text, "pattern")
    constants = {node.outputs[0]: node for node in side.nodes if is_constant(node)}
    nodes = tuple(node for node in side.nodes if not is_constant(node))
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value in constants:
                tensor = constant_of(constants[value])
                if tensor is None:
                    raise RequestError(f"`pattern`: constant {value.name!r} has no value")
                node.replace_input_with(index, ir.Value(name=value.name, const_value=tensor))
        if any(True for _ in own_subgraphs(node)):
            raise RequestError(f"`pattern`: {node.op_type} has a subgraph, which a pattern cannot have")
    _check_ends(side, nodes)
    return RuleText(side.inputs, side.outputs, nodes)


def _check_ends(side: RuleText, nodes: Sequence[ir.Node]) -> None:
    """Check that the pattern's nodes read all of its inputs and produce all of its outputs."""
    read = {value for node in nodes for value in node.inputs}
    for value in side.inputs:
        if value not in read:
            raise RequestError(f"`pattern`: input {value.name!r} is read by none of its nodes")
    computed = {value for node in nodes for value in node.outputs}
    for value in side.outputs:
        if value not in computed:
            raise RequestError(f"`pattern`: output {value.name!r} is produced by none of its nodes")


def parse_replacement(text: str, pattern: RuleText) -> RuleText:
    """Parse a replacement. Raises `RequestError` for text that cannot be parsed or does not fit the pattern."""
    side = _parse(text, "replacement")
    for value in side.inputs:
        pattern.input(value.name or "", "replacement")
    if len(side.outputs) != len(pattern.outputs):
        raise RequestError(f"`replacement` has {len(side.outputs)} outputs, and `pattern` has {len(pattern.outputs)}")
    known = pattern.variables()
    for name in side.variables():
        if name not in known:
            raise UnknownNameError(f"`replacement`: ${name} is not in the pattern", name, known)
    return side


def _parse(text: str, setting: str) -> RuleText:
    if not text.strip():
        raise RequestError(f"`{setting}` is empty: write `(inputs) => (outputs) {{ nodes }}`")
    try:
        (proto,) = onnx.parser.parse_model(_HEADER + _VARIABLE.sub(r'= "$\1"', text.strip())).functions
    except onnx.parser.ParseError as error:
        raise RequestError(f"`{setting}` cannot be parsed: {_reason(error)}") from None
    except ValueError:
        raise RequestError(f"`{setting}` has more than one `(inputs) => (outputs) {{ nodes }}`") from None
    _check_names(proto, setting)
    function = ir.serde.deserialize_function(proto)
    for node in function:
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.STRING and attribute.as_string().startswith("$"):
                variable = attribute.as_string()[1:]
                node.attributes[attribute.name] = ir.RefAttr(attribute.name, variable, ir.AttributeType.UNDEFINED)
    return RuleText(tuple(function.inputs), tuple(function.outputs), tuple(function))


def _check_names(proto: onnx.FunctionProto, setting: str) -> None:
    known = set(proto.input)
    for what, names in (("input", proto.input), ("output", proto.output)):
        twice = next((name for name in names if list(names).count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"`{setting}`: {what} {twice!r} is listed twice")
    for node in proto.node:
        _check_defined(node.input, known, setting)
        for name in node.output:
            if name in known:
                raise RequestError(f"`{setting}`: {name!r} is defined twice")
            known.add(name)
    _check_defined(proto.output, known, setting)


def _check_defined(names: Iterable[str], known: set[str], setting: str) -> None:
    check_known(filter(None, names), known, f"`{setting}`:", " is neither an input nor defined before")


def _reason(error: Exception) -> str:
    """Return the parser's reason with its position in the recipe's text, without the line of the header."""
    message = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
    place, lines = _PLACE.search(message), message.splitlines()
    where = f"line {int(place[1]) - 1}: " if place else ""
    return f"{where}{one_paragraph(lines[-1])} (near `{one_paragraph(lines[-2].removeprefix('Error context:'))}`)"


def check_conditions(conditions: RewriteConditions, pattern: RuleText) -> None:
    """Raise `RequestError` for names that the pattern lacks, unknown types, and constants that are not numeric."""
    named = (conditions.constants, conditions.dtypes, conditions.ranks, conditions.shapes, conditions.single_use)
    for name in itertools.chain.from_iterable(named):
        pattern.input(name, "where")
    for name, wanted in conditions.constants.items():
        if not is_numeric(wanted):
            raise RequestError(
                f"`where`: constant {name!r} must be a number, or nested lists of numbers of equal lengths, "
                f"not {wanted!r}"
            )
    for dtypes in conditions.dtypes.values():
        for dtype in dtypes:
            parse_dtype(dtype)
    variables = pattern.variables()
    for name in conditions.attributes:
        if name not in variables:
            raise UnknownNameError(f"`where`: ${name} is not an attribute of the pattern", name, variables)


def _holds(conditions: RewriteConditions, name: str, value: ir.Value, tolerance: float) -> bool:
    """Return whether a tensor meets the conditions on the pattern's input of that name."""
    if name in conditions.constants:
        tensor, wanted = fixed_tensor(value), conditions.constants[name]
        if tensor is None or (wanted is not None and not is_close(np.asarray(wanted), tensor, tolerance)):
            return False
    if name in conditions.dtypes and value.dtype not in [parse_dtype(dtype) for dtype in conditions.dtypes[name]]:
        return False
    if name in conditions.ranks and (value.shape is None or len(value.shape) != conditions.ranks[name]):
        return False
    return name not in conditions.shapes or has_shape(value.shape, conditions.shapes[name])


def _allows(
    conditions: RewriteConditions, attributes: Mapping[str, ir.Attr], match: Match, inputs: Iterable[ir.Value]
) -> bool:
    """Return whether a match meets the conditions on attributes and on the uses of its inputs."""
    for name, allowed in conditions.attributes.items():
        attribute = attributes.get(name)
        if attribute is None or not any(has_value(attribute, value) for value in allowed):
            return False
    nodes = set(match.nodes.values())
    values = {value.name: match.values[value] for value in inputs if value in match.values}
    alone = (values[name] for name in conditions.single_use if name in values)
    return all(not v.is_graph_output() and all(use.node in nodes for use in v.uses()) for v in alone)


@dataclass(frozen=True)
class Matching:
    """Options of the search for matches."""

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
class Matches:
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


def find_matches(model: ir.Model, rule: Rule, extent: Extent) -> Matches:
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
            if extent.limit is not None and len(search.result.matches) >= extent.limit:
                return search.result
            next((True for match in pattern.matches(root, around) if search.accept(match)), False)
    return search.result


class _Search:
    """Decides whether candidates match the pattern, and whether a match may be replaced."""

    def __init__(self, rule: Rule, model: ir.Model, around: Neighbourhood, chosen: Set[ir.Node] | None) -> None:
        self.result = Matches()
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
        inputs, others = inputs_given(node), inputs_given(candidate)
        if node.op_identifier() != candidate.op_identifier() or len(inputs) != len(others):
            return
        if not self._attributes_fit(node, candidate):
            return
        commutative = not node.domain and node.op_type in _COMMUTATIVE
        permuted = self._matching.commutative and commutative and 1 < len(inputs) <= _PERMUTED
        for order in itertools.permutations(others) if permuted else [others]:
            pairs = list(zip(inputs, order, strict=True))
            if all(_keeps_rank(value, other, others) for value, other in pairs):
                yield pairs

    def may_be(self, value: ir.Value, candidate: ir.Value) -> bool:
        if value.const_value is not None:
            tensor = fixed_tensor(candidate)
            return tensor is not None and is_close(value.const_value.numpy(), tensor, self._matching.tolerance)
        return _holds(self._matching.conditions, value.name or "", candidate, self._matching.tolerance)

    def accept(self, match: Match) -> bool:
        """Record a match if it may be replaced, and count the reason otherwise. Returns whether it may."""
        nodes = [match.nodes[node] for node in self._rule.pattern.nodes]
        if any(node in self._taken for node in nodes):
            return False
        if self._chosen is not None and not self._chosen >= set(nodes):
            return False
        attributes = self._variables(match)
        if attributes is None:
            return False
        if not _allows(self._matching.conditions, attributes, match, self._rule.pattern.inputs):
            return False
        reason = self._obstacle(match, nodes)
        if reason:
            self.result.refused[reason] += 1
            return False
        self._taken.update(nodes)
        self.result.matches.append(match)
        self.result.attributes.append(attributes)
        return True

    def _obstacle(self, match: Match, nodes: Sequence[ir.Node]) -> str:
        """Return the reason why a match is not replaced; empty if it is."""
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
        schema = schema_of(node.op_type, self.opsets.get(node.domain, 1), node.domain)
        if schema is None or name not in schema.attributes:
            return None
        default = schema.attributes[name].default_value
        return ir.serde.deserialize_attribute(default) if default.type else None

    def _variables(self, match: Match) -> dict[str, ir.Attr] | None:
        """Return variable -> attribute; None if a variable would have two values."""
        attributes: dict[str, ir.Attr] = {}
        for variable, places in self._rule.pattern.variables().items():
            given = [self._attribute(match.nodes[node], name) for node, name in places]
            if any(not same_value(given[0], each) for each in given[1:]):
                return None
            if given[0] is not None:
                attributes[variable] = given[0]
        return attributes


def _keeps_rank(value: ir.Value | None, other: ir.Value | None, inputs: Sequence[ir.Value | None]) -> bool:
    """Return whether a constant of one element matches a number without raising the rank of the result."""
    if value is None or other is None or value.const_value is None or other.shape is None or len(other.shape) < 2:
        return True
    rank = len(other.shape)
    ranks = [len(each.shape) for each in inputs if each is not None and each is not other and each.shape is not None]
    return len(value.const_value.shape) == rank or any(given >= rank for given in ranks)


def rewrite(edited: EditedModel, texts: tuple[str, str], matching: Matching, extent: Extent) -> int:
    """Replace all matches of a rule, given as texts of pattern and replacement; returns their number.

    Raises `RequestError` for texts that cannot be read, conditions that do not fit the pattern, and if no place fits
    and that is not allowed.
    """
    pattern = parse_pattern(texts[0])
    rule = Rule(pattern, parse_replacement(texts[1], pattern), matching)
    check_conditions(matching.conditions, pattern)
    for graph in (edited.model.graph, *(function.graph for function in edited.model.functions.values())):
        graph.sort()
    conditions = matching.conditions
    need_shapes = conditions.dtypes or conditions.ranks or conditions.shapes
    with known_shapes(edited.model) if need_shapes else nullcontext():
        result = find_matches(edited.model, rule, extent)
    left = "; ".join(f"{count} skipped: {reason}" for reason, count in sorted(result.refused.items()))
    if not result.matches and not extent.allow_empty:
        raise RequestError(f"the pattern has no match in this model{f' that may be replaced; {left}' if left else ''}")
    replace_matches(edited, rule, result)
    if left:
        edited.note(f"matches of the pattern: {len(result.matches)} replaced; {left}")
    return len(result.matches)


def replace_matches(edited: EditedModel, rule: Rule, matches: Matches) -> None:
    """Replace matches; the new tensors get the names and readers of the old ones."""
    graphs, imports = list(all_graphs(edited.model)), Imports(edited.model)
    domains = {node.domain: 1 for node in deep_nodes(rule.replacement.nodes) if node.domain}
    moved: dict[ir.Value, ir.Value] = {}
    touched: dict[ir.Graph, None] = {}
    for match, attributes in zip(matches.matches, matches.attributes, strict=True):
        graph = graph_of(match.nodes[rule.pattern.nodes[-1]])
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
        shared: dict[str, set[str]] = {}
        for node in self._nodes:
            for key, text in node.metadata_props.items():
                shared.setdefault(key, set()).add(text)
        metadata = {key: texts.pop() for key, texts in shared.items() if len(texts) == 1}  # precisions always agree
        for node in copies.nodes:
            node.metadata_props.update({**metadata, **node.metadata_props})
        graph.insert_before(self._nodes[-1], copies.nodes)
        self._name(copies.nodes)
        olds = [match.values[value] for value in rule.pattern.outputs]
        for old, value in zip(olds, rule.replacement.outputs, strict=True):
            new = copies.values.get(value)
            self._replace_uses(old, new, read.get(value), graph)
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

    def _replace_uses(self, old: ir.Value, new: ir.Value | None, given: ir.Value | None, graph: ir.Graph) -> None:
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
        replace_uses(old, new, set(self._nodes), self._graphs)
        self._moved[old] = new
